"""Install a job's own packages into an overlay: a virtual environment on top of the host's own Python.

The overlay sees everything that the host's Python sees, and its own packages come first. It is made once and kept by
content, under a lock, so that jobs that start together share it:

    environments/HASH                    the hash is that of requirements.txt and the files that it includes
        herringbone-ready                made last: the local libraries, archives and wheels that pip took, by content
    environments/HASH-2                  made anew because such a target has changed, while jobs still use the first
"""

from __future__ import annotations

import codecs
import hashlib
import io
import itertools
import json
import os
import shutil
import signal
import site
import subprocess
import sys
import time
import tokenize
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import FileIO
from pathlib import Path
from urllib.parse import unquote, urlsplit

from herringbone_contract.constants import HostVariable
from herringbone_contract.errors import InputError, LaunchError
from herringbone_contract.files import locked, try_locked, write_whole

_READY = "herringbone-ready"
_LINK_OPTIONS = ("-f", "--find-links")
_INCLUDE_OPTIONS = ("-r", "--requirement", "-c", "--constraint")
# What builds and interpreters write into a library's own folder.
# As pip has them. Those of UTF-32 come first: it begins with the mark of UTF-16.
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_BUILT = frozenset({"__pycache__", ".git", "build", "dist"})
_ERROR_LINES = 3
_PIECE_BYTES = 1 << 20
# The locks of the environments that this process uses.
_used: list[FileIO] = []


def overlay(
    requirements: Path | None,
    package: Path | None,
    *,
    cache: Path,
    log: Callable[[str], None],
    shown: Path | None = None,
) -> Path:
    """Return the Python of an overlay that has these requirements, and the user's own package, installed.

    A second job with the same content reuses the overlay. The content includes the local libraries, archives and
    wheels that pip took. pip's own settings (`PIP_INDEX_URL`, `PIP_NO_INDEX`, `PIP_FIND_LINKS`, `--require-hashes` in
    the file) apply. `log` takes pip's lines. `shown` is the cache's path in messages, outside of a container.

    Raises `InputError` when a file that the requirements include is missing. Raises `LaunchError`, with pip's own
    message and its name of the package, when the installation fails.
    """
    digest = fingerprint(requirements, package)
    environments = cache / "environments"
    environments.mkdir(parents=True, exist_ok=True)
    base = package if requirements is None else requirements.parent
    assert base is not None
    # The kernel releases the lock when its holder dies, so a killed job blocks nobody.
    with locked(environments / f"{digest}.lock"):
        for folder in _generations(environments / digest):
            ready = folder / _READY
            made = _made(ready)
            if made is not None and all(content_of(base / name) == found for name, found in made.items()):
                made_at = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(ready.stat().st_mtime))
                place = (shown or cache) / folder.relative_to(cache)
                log(f"requirements.txt: the environment of {made_at} is reused; to install anew: rm -r {place}")
                break
            # Jobs that run still import from an environment whose local libraries have changed.
            if not ready.exists() or _is_unused(ready):
                # A job that was stopped half-way may have left a part.
                shutil.rmtree(folder, ignore_errors=True)
                _install(folder, requirements, package, base, log)
                break
        # Never closed, so that the lock shows for the life of this process that the environment is used.
        _used.append(locked(ready, shared=True))
    return folder / "bin" / "python"


def fingerprint(requirements: Path | None, package: Path | None) -> str:
    """Return a name for what an overlay is made from: a hash of the files and of the Python below it."""
    digest = hashlib.sha256(f"{sys.version}\0{sys.prefix}\0".encode())
    if requirements is not None:
        links = ({**_pip_settings(os.environ), **os.environ}.get("PIP_FIND_LINKS") or "").split()
        for path in included(requirements):
            digest.update(path.read_bytes() + b"\0")
            links += [str(path.parent / value) for name, value in _options(path) if name in _LINK_OPTIONS]
        # Of an unpinned package, pip takes the newest that is in these folders.
        for folder in (Path(link.removeprefix("file://")) for link in links):
            digest.update(
                "\0".join([str(path) for path in sorted(folder.glob("*"))] if folder.is_dir() else []).encode()
            )
    if package is not None:
        digest.update(str(content_of(package)).encode())
    return digest.hexdigest()[:24]


def included(path: Path, seen: frozenset[Path] = frozenset()) -> Iterator[Path]:
    """Yield a requirements file and all files that it includes with -r or -c."""
    if path in seen:
        return
    if not path.is_file():
        raise InputError(f"requirements file {path} does not exist")
    yield path
    for name, value in _options(path):
        if name in _INCLUDE_OPTIONS and "://" not in value:
            yield from included(path.parent / value, seen | {path})


def _options(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the options in a requirements file that have a value."""
    for line in _text(path).splitlines():
        words = line.split("#")[0].replace("=", " ").split() if line.lstrip().startswith("-") else []
        if len(words) >= 2:
            yield words[0], words[1]


def _text(path: Path) -> str:
    """Return the text of a requirements file as pip decodes it. Raises `InputError` where pip shows a traceback."""
    data = path.read_bytes()
    try:
        for mark, encoding in _MARKS:
            if data.startswith(mark):
                return data.decode(encoding)
        if b"\0" in data:
            # pip would report a requirement with zeros in it, which a terminal does not show.
            raise SyntaxError("it has zero bytes, as UTF-16 without a byte order mark has")
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return data.decode(encoding)
    except (SyntaxError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path.name} is not in UTF-8 ({error}): save it in UTF-8, or begin it with a line that names its encoding:"
            " # -*- coding: latin-1 -*-"
        ) from None


def content_of(path: Path) -> str | None:
    """Return a hash of a file, or of a folder's files without what builds leave in it; None if there is neither."""
    digest = hashlib.sha256()
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    for file in files:
        name = file.relative_to(path)
        if not any(part in _BUILT or part.endswith(".egg-info") for part in name.parts):
            digest.update(f"{name}\0{file.stat().st_size}\0".encode())
            with file.open("rb") as content:
                while piece := content.read(_PIECE_BYTES):
                    digest.update(piece)
    return digest.hexdigest() if files else None


def local_targets(report: bytes, base: Path) -> dict[str, bool]:
    """Return the files and folders of this machine in pip's report of an installation, and whether each is fixed.

    Names are relative to `base` below it: the next job has a copy of its own. A repository is not fixed: its content
    is that of a commit.

    >>> local_targets(b'{"install": [{"download_info": {"url": "file:///src/my%20lib", "dir_info": {}}}]}', Path("/j"))
    {'/src/my lib': True}
    """
    targets = {}
    for package in json.loads(report)["install"]:
        info = package["download_info"]
        url = urlsplit(info["url"])
        if url.scheme == "file":
            path = Path(unquote(url.path))
            targets[str(path.relative_to(base) if path.is_relative_to(base) else path)] = "vcs_info" not in info
    return targets


def _generations(first: Path) -> Iterator[Path]:
    """Yield the folders of one name: more than one only while running jobs use an environment that is out of date."""
    yield first
    for number in itertools.count(2):
        yield first.with_name(f"{first.name}-{number}")


def _made(ready: Path) -> dict[str, str | None] | None:
    """Return the local targets of a complete environment, with their content at the time; None for another one."""
    try:
        return dict(json.loads(ready.read_bytes()))
    except (FileNotFoundError, ValueError):
        return None


def _is_unused(ready: Path) -> bool:
    """Report whether no running job imports from an environment."""
    try:
        lock = try_locked(ready)
    except OSError:
        return False
    if lock is not None:
        lock.close()
    return lock is not None


def _install(
    folder: Path, requirements: Path | None, package: Path | None, base: Path, log: Callable[[str], None]
) -> None:
    _make(folder)
    python, report = folder / "bin" / "python", folder / "report.json"
    targets: dict[str, bool] = {}
    if requirements is not None:
        _pip(python, ["--report", str(report), "-r", str(requirements)], base, log)
        targets = local_targets(report.read_bytes(), base)
    if package is not None:
        # The package itself is a part of the fingerprint.
        _pip(python, [str(package)], base, log)
    made = {name: content_of(base / name) if fixed else "" for name, fixed in targets.items()}
    write_whole(folder / _READY, json.dumps(made).encode(), mode=0o666)


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


def _pip(python: Path, targets: list[str], base: Path, log: Callable[[str], None]) -> None:
    """Install what the targets name; pip takes relative paths in requirements.txt from the folder that it runs in."""
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar", "off", *targets]
    environment = {**_pip_settings(os.environ), **os.environ, "PIP_ROOT_USER_ACTION": "ignore"}
    with subprocess.Popen(
        command,
        cwd=base,
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
        raise LaunchError(f"pip cannot install {' '.join(targets[-2:])}: {explain(lines, environment.get('PIP_CERT'))}")


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
