"""What a visit runs first on a machine, sent there as text: the machine may have nothing of ours yet.

Only the standard library, and of that no more than it takes: each visit waits for it. Takes two lines, the folder for
all that is ours and the digest of the Herringbone that asks. Where its environment is there, becomes the desk in it, in
the same process; else asks for the wheel by {"send": "wheel"}, makes the environment, and does so then.

An environment sees everything that the machine's Python sees. It is made under a lock, whole or not at all, and kept by
the digest of the wheel and the Python below it.
"""

from __future__ import annotations

import hashlib
import os
import sys

READY = "herringbone-ready"
OLDEST_PYTHON = (3, 10)
# What runs over there imports these; pip is asked only where one of them is missing.
NEEDED = ("msgspec", "yaml", "pathspec")


def main() -> None:
    """Become the desk, or say {"failed": why} and exit."""
    version = sys.version_info[:2]
    folder, wheel = read_line().decode().rstrip("\n"), read_line().decode().rstrip("\n")
    work = os.path.expanduser(folder)  # noqa: PTH111 - `os` is loaded anyway, and pathlib costs milliseconds
    try:
        if version < OLDEST_PYTHON:
            raise RuntimeError(f"its Python is {version[0]}.{version[1]}, 3.10 or newer is needed; name one by python:")
        os.makedirs(work, 0o700, exist_ok=True)  # noqa: PTH103
        python = environment(work, wheel)
        os.chdir(work)
    except OSError as error:
        fail(f"its work folder {work} cannot be used: {error}")
    except RuntimeError as error:
        fail(str(error))
    path = os.environ.get("PATH", os.defpath)
    variables = {**os.environ, "PATH": f"{os.path.dirname(python)}{os.pathsep}{path}"}  # noqa: PTH120
    # The current folder comes first where `-m` looks for modules: it is ours, and has none.
    os.execve(python, [python, "-m", "herringbone.backends.ssh.agent", work], variables)  # noqa: S606


def fail(why: str) -> None:
    tell({"failed": why})
    sys.exit(3)


def tell(message: dict[str, str]) -> None:
    import json

    os.write(1, json.dumps(message).encode() + b"\n")


def read_line() -> bytes:
    """Read to the end of a line, and not a byte further: the rest is the desk's."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            sys.exit(3)
        line += byte
    return line


def read(size: int) -> bytes:
    pieces = []
    while size:
        piece = os.read(0, min(size, 1 << 20))
        if not piece:
            sys.exit(3)
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def environment(work: str, wheel: str) -> str:
    """Return the environment's Python; it is made where it is missing."""
    below = "\0".join((wheel, sys.version, sys.prefix))
    folder = f"{work}/environments/{hashlib.sha256(below.encode()).hexdigest()[:24]}"
    python = f"{folder}/bin/python"
    if os.path.exists(f"{folder}/{READY}"):  # noqa: PTH110
        return python
    import fcntl
    import shutil

    tell({"send": "wheel"})
    content = read(int(read_line()))
    if hashlib.sha256(content).hexdigest() != wheel:
        raise RuntimeError("the wheel came damaged; try again")
    os.makedirs(f"{work}/environments", exist_ok=True)  # noqa: PTH103
    with open(f"{folder}.lock", "w") as lock:  # noqa: PTH123
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(f"{folder}/{READY}"):  # noqa: PTH110
            # Left by a visit that ended half way.
            shutil.rmtree(folder, ignore_errors=True)
            make(folder, python, content)
    return python


def make(folder: str, python: str, content: bytes) -> None:
    import io
    import site
    import subprocess
    import zipfile

    run([sys.executable, "-m", "venv", "--without-pip", folder], "an environment cannot be made")
    library = f"{folder}/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    # Not bare paths: what is installed below in editable form works through .pth files of its own.
    parents = [*site.getsitepackages(), site.getusersitepackages()]
    with open(f"{library}/_herringbone_parent.pth", "w") as file:  # noqa: PTH123
        file.writelines(f"import site; site.addsitedir({parent!r})\n" for parent in parents)
    with zipfile.ZipFile(io.BytesIO(content)) as wheel:
        wheel.extractall(library)  # ours: its digest is what was asked for
        metadata = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    find = f"import importlib.util, sys; sys.exit(not all(map(importlib.util.find_spec, {NEEDED})))"
    if subprocess.run([python, "-c", find], stdin=subprocess.DEVNULL).returncode:
        with open(f"{library}/{metadata}") as file:  # noqa: PTH123
            wanted = [line.partition(":")[2].strip() for line in file if line.startswith("Requires-Dist:")]
        pip = [sys.executable, "-m", "pip", "--python", python, "install", "--no-input", "--quiet"]
        pip += ["--disable-pip-version-check", *(requirement for requirement in wanted if ";" not in requirement)]
        run(pip, f"its Python has not all of {', '.join(NEEDED)}, and pip cannot bring them")
    with open(f"{folder}/{READY}", "w"):  # noqa: PTH123
        pass


def run(command: list[str], trouble: str) -> None:
    import subprocess

    ended = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if ended.returncode:
        words = " ".join((ended.stdout.strip().splitlines() or ["no reason given"])[-3:])
        raise RuntimeError(f"{trouble}: {words}")


if __name__ == "__main__":
    main()
