"""Packages that only launched ranks see: AWS's names for all, Horovod's for a job that asks and has no real one.

Both folders come last on a rank's path, behind whatever is installed.
"""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from pathlib import Path

from herringbone_contract.launcher import Launcher

_PACKAGE = "herringbone_parallel"
# Package -> its folder in a wheel, inside `herringbone_parallel`, and in a checkout, beside it.
_FOLDERS = {"smdistributed": ("_shim", "shim"), "horovod": ("_shim_horovod", "shim_horovod")}
_IMPORTS_HOROVOD = re.compile(rb"^[ \t]*(?:import|from)[ \t]+horovod\b", re.MULTILINE)


def shims(launcher: Launcher, code: Path, python: str) -> tuple[str, ...]:
    """Return the folders for the ranks' path; `python` is theirs, `code` the folder of the job's code."""
    names = ["smdistributed"]
    if launcher is Launcher.MPI and asks_for_horovod(code) and not has_horovod(code, python):
        names.append("horovod")
    return tuple(folder for name in names if (folder := find_shim(name)) is not None)


def find_shim(name: str) -> str | None:
    """Return the folder that makes a shim importable; None where it is not installed.

    The package beside it is looked up, not imported: it may bring a framework along.
    """
    spec = find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        return None
    package = Path(spec.origin).parent
    inside, beside = _FOLDERS[name]
    for folder in (package / inside, package.parent / beside):
        if (folder / name).is_dir():
            return str(folder)
    return None


def asks_for_horovod(code: Path) -> bool:
    """Say whether a script of the job's own imports Horovod; what its libraries try to import does not count."""
    return any(_IMPORTS_HOROVOD.search(path.read_bytes()) for path in code.rglob("*.py") if path.is_file())


def has_horovod(code: Path, python: str) -> bool:
    """Say whether ranks find a real Horovod: brought by the job, installed here, or in an overlay's Python."""
    if (code / "horovod").is_dir() or find_spec("horovod") is not None:
        return True
    if python == sys.executable:
        return False
    return any(Path(python).parents[1].glob("lib/python*/site-packages/horovod"))
