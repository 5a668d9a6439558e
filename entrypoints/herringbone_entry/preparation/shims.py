"""Find the shim packages that only launched ranks see.

Every job gets `smdistributed`, AWS's names. A job that imports Horovod and has no real one gets `horovod`. A job for
version 2 of `modelparallel`, or that imports `torch.sagemaker`, gets the latter. The folders come last on a rank's
path, after all installed packages.
"""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from pathlib import Path

from herringbone_contract.launcher import Launcher

_PACKAGE = "herringbone_parallel"
# Package -> its folder in a wheel, inside `herringbone_parallel`, and in a checkout, next to it.
_FOLDERS = {
    "smdistributed": ("_shim", "shim"),
    "horovod": ("_shim_horovod", "shim_horovod"),
    # torch finds this module by its entry point, and extends itself.
    "herringbone_torch_sagemaker.py": ("_shim_sagemaker", "shim_sagemaker"),
}
_IMPORTS_HOROVOD = rb"^[ \t]*(?:import|from)[ \t]+horovod\b"
_IMPORTS_TORCH_SAGEMAKER = (
    rb"^[ \t]*(?:(?:import|from)[ \t]+torch\.sagemaker\b|from[ \t]+torch[ \t]+import[^#\n]*\bsagemaker\b)"
)


def shims(launcher: Launcher, code: Path, python: str, *, version2: bool = False) -> tuple[str, ...]:
    """Return the folders for the ranks' path.

    `python` is the ranks' Python, `code` the job's code folder; `version2` says whether the job has parameters of
    version 2 of `modelparallel`.
    """
    names = ["smdistributed"]
    if launcher is Launcher.MPI and asks_for_horovod(code) and not has_horovod(code, python):
        names.append("horovod")
    if version2 or (launcher is Launcher.TORCH_DISTRIBUTED and asks_for_torch_sagemaker(code)):
        names.append("herringbone_torch_sagemaker.py")
    return tuple(folder for name in names if (folder := find_shim(name)) is not None)


def find_shim(name: str) -> str | None:
    """Return the folder that makes a shim importable; None when it is not installed.

    `herringbone_parallel` is looked up and not imported, because its import may load a framework.
    """
    spec = find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        return None
    package = Path(spec.origin).parent
    inside, next_to = _FOLDERS[name]
    for folder in (package / inside, package.parent / next_to):
        if (folder / name).exists():
            return str(folder)
    return None


def asks_for_horovod(code: Path) -> bool:
    """Say whether a script of the job imports Horovod; imports in installed libraries do not count."""
    return _imports(code, _IMPORTS_HOROVOD)


def asks_for_torch_sagemaker(code: Path) -> bool:
    """Say whether a script of the job imports `torch.sagemaker`."""
    return _imports(code, _IMPORTS_TORCH_SAGEMAKER)


def _imports(code: Path, pattern: bytes) -> bool:
    return any(re.search(pattern, path.read_bytes(), re.MULTILINE) for path in code.rglob("*.py") if path.is_file())


def has_horovod(code: Path, python: str) -> bool:
    """Say whether ranks find a real Horovod: brought by the job, installed here, or in an overlay's Python."""
    if (code / "horovod").is_dir() or find_spec("horovod") is not None:
        return True
    if python == sys.executable:
        return False
    return any(Path(python).parents[1].glob("lib/python*/site-packages/horovod"))
