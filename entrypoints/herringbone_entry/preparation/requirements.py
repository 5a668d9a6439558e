"""The packages a job asks for: a virtual environment laid over the host's own, made once and kept by content.

The overlay sees everything the host's Python sees, and what is installed into it comes first. It is made under a
lock, so that ranks and jobs which start together share one.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import site
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from herringbone_contract.errors import InputError, LaunchError

_READY = "herringbone-ready"
_INCLUDE_OPTIONS = ("-r", "--requirement", "-c", "--constraint")
_ERROR_LINES = 3


def overlay(requirements: Path | None, package: Path | None, *, cache: Path, log: Callable[[str], None]) -> Path:
    """Return the Python of an environment that has these requirements (and the user's own package) installed.

    The second job with the same content finds it made. pip's own settings (`PIP_INDEX_URL`, `PIP_NO_INDEX`,
    `PIP_FIND_LINKS`, `--require-hashes` in the file) hold. `log` takes pip's lines.

    Raises `InputError` when a file that the requirements include is missing, `LaunchError` with pip's words, which
    name the package, when it cannot be installed.
    """
    digest = fingerprint(requirements, package)
    folder = cache / "environments" / digest
    python = folder / "bin" / "python"
    if (folder / _READY).exists():
        return python
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{digest}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / _READY).exists():
            return python
        # Left by a job that was stopped half-way.
        shutil.rmtree(folder, ignore_errors=True)
        _make(folder)
        if requirements is not None:
            _pip(python, ["-r", str(requirements)], log)
        if package is not None:
            _pip(python, [str(package)], log)
        (folder / _READY).touch()
    return python


def fingerprint(requirements: Path | None, package: Path | None) -> str:
    """Return a name for what an overlay holds: the files' content, and the Python below it."""
    digest = hashlib.sha256(f"{sys.version}\0{sys.prefix}\0".encode())
    if requirements is not None:
        for path in included(requirements):
            digest.update(path.read_bytes() + b"\0")
    if package is not None:
        for path in sorted(package.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(f"{path.relative_to(package)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:24]


def included(path: Path, seen: frozenset[Path] = frozenset()) -> Iterator[Path]:
    """Yield a requirements file and all that it includes with -r or -c."""
    if path in seen:
        return
    if not path.is_file():
        raise InputError(f"requirements file {path} does not exist")
    yield path
    for line in path.read_text(encoding="utf-8").splitlines():
        words = line.split("#")[0].replace("=", " ").split() if line.lstrip().startswith("-") else []
        if len(words) >= 2 and words[0] in _INCLUDE_OPTIONS and "://" not in words[1]:
            yield from included(path.parent / words[1], seen | {path})


def _make(folder: Path) -> None:
    command = [sys.executable, "-m", "venv", "--without-pip", str(folder)]
    made = subprocess.run(command, capture_output=True, text=True)
    if made.returncode:
        raise LaunchError(f"an environment for requirements.txt cannot be made in {folder}: {_last(made.stderr)}")
    library = next((folder / "lib").glob("python*")) / "site-packages"
    # `addsitedir` and not a bare path: what is installed below in editable form works through .pth files of its own.
    parents = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    lines = [f"import site; site.addsitedir({parent!r})" for parent in parents]
    (library / "_herringbone_parent.pth").write_text("\n".join(lines) + "\n")


def _pip(python: Path, what: list[str], log: Callable[[str], None]) -> None:
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar", "off", *what]
    environment = {**os.environ, "PIP_ROOT_USER_ACTION": "ignore"}
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as pip:
        assert pip.stdout is not None
        lines = []
        try:
            for line in pip.stdout:
                lines.append(line.rstrip("\n"))
                log(lines[-1])
        except BaseException:
            # A stop, say: leaving the block would wait for pip, and for the pip that it runs in the overlay.
            os.killpg(pip.pid, signal.SIGKILL)
            raise
    if pip.returncode:
        errors = [line for line in lines if line.startswith("ERROR")] or lines
        raise LaunchError(f"pip cannot install {' '.join(what)}: {' '.join(errors[-_ERROR_LINES:])}")


def _last(text: str) -> str:
    return (text.strip().splitlines() or ["no reason given"])[-1]
