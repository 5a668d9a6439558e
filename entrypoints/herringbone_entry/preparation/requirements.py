"""Install a job's own packages into an overlay: a virtual environment on top of the host's own Python.

The overlay sees everything that the host's Python sees, and its own packages come first. It is made once and kept by
content, under a lock, so that jobs that start together share it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import signal
import site
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from herringbone_contract.constants import HostVariable
from herringbone_contract.errors import InputError, LaunchError

_READY = "herringbone-ready"
_INCLUDE_OPTIONS = ("-r", "--requirement", "-c", "--constraint")
_ERROR_LINES = 3


def overlay(requirements: Path | None, package: Path | None, *, cache: Path, log: Callable[[str], None]) -> Path:
    """Return the Python of an overlay that has these requirements, and the user's own package, installed.

    A second job with the same content reuses the overlay. pip's own settings (`PIP_INDEX_URL`, `PIP_NO_INDEX`,
    `PIP_FIND_LINKS`, `--require-hashes` in the file) apply. `log` takes pip's lines.

    Raises `InputError` when a file that the requirements include is missing. Raises `LaunchError`, with pip's own
    message and its name of the package, when the installation fails.
    """
    digest = fingerprint(requirements, package)
    folder = cache / "environments" / digest
    python = folder / "bin" / "python"
    if (folder / _READY).exists():
        return python
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{digest}.lock").open("w") as lock:
        # The kernel releases the lock when its holder dies, so a killed job blocks nobody.
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Another job may have made it while this one waited for the lock.
        if (folder / _READY).exists():
            return python
        # A job that was stopped half-way may have left a part.
        shutil.rmtree(folder, ignore_errors=True)
        _make(folder)
        if requirements is not None:
            _pip(python, ["-r", str(requirements)], log)
        if package is not None:
            _pip(python, [str(package)], log)
        (folder / _READY).touch()
    return python


def fingerprint(requirements: Path | None, package: Path | None) -> str:
    """Return a name for an overlay's content: a hash of the files and of the Python below it."""
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
    """Yield a requirements file and all files that it includes with -r or -c."""
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
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise LaunchError(f"an environment for requirements.txt cannot be made in {folder}: {_last(result.stderr)}")
    library = next((folder / "lib").glob("python*")) / "site-packages"
    # `addsitedir` and not a bare path: editable installs of the host's Python work through .pth files of their own.
    parents = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    lines = [f"import site; site.addsitedir({parent!r})" for parent in parents]
    (library / "_herringbone_parent.pth").write_text("\n".join(lines) + "\n")


def _pip(python: Path, targets: list[str], log: Callable[[str], None]) -> None:
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar", "off", *targets]
    environment = {**_pip_settings(os.environ), **os.environ, "PIP_ROOT_USER_ACTION": "ignore"}
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A session of its own, so that one signal to its group ends pip and every process that it started.
        start_new_session=True,
    ) as pip:
        assert pip.stdout is not None
        lines = []
        try:
            for line in pip.stdout:
                lines.append(line.rstrip("\n"))
                log(lines[-1])
        except BaseException:
            # For example a stop: leaving this block would wait for pip, and for the pip that it runs in the overlay.
            os.killpg(pip.pid, signal.SIGKILL)
            raise
    if pip.returncode:
        raise LaunchError(f"pip cannot install {' '.join(targets)}: {explain(lines, environment.get('PIP_CERT'))}")


def explain(lines: Sequence[str], certificate: str | None) -> str:
    """Return why pip failed, and what to do; `certificate` is the file in `PIP_CERT`. Pure.

    >>> explain(["Collecting a", "ERROR: No matching distribution found for a"], None)
    'ERROR: No matching distribution found for a'
    """
    # pip prints the cause first and then general advice, so look for its ERROR lines.
    errors = [line for line in lines if line.startswith("ERROR")] or lines
    text = " ".join(errors[-_ERROR_LINES:])
    # pip warns of the certificate, and its ERROR says only that it has found no package.
    if not any("CERTIFICATE_VERIFY_FAILED" in line for line in lines):
        return text
    trusted = "the system's certificates" if certificate is None else f"the certificates in PIP_CERT={certificate}"
    return (
        f"the package index's certificate is not signed by {trusted}, most often because a company's proxy signs it: "
        "set PIP_CERT to the file of the proxy's certificate where you start the job; with instance_type 'local', "
        f"bake_requirements=True installs once per image. pip says: {text}"
    )


def _pip_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of pip that the backend has sent. The container's own variables win over them."""
    return dict(json.loads(environ.get(HostVariable.PIP, "{}")))


def _last(text: str) -> str:
    return (text.strip().splitlines() or ["no reason given"])[-1]
