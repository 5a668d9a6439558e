"""The script that a connection runs first on a machine; it is sent as text, so the machine needs nothing of ours.

    client                                  machine
    bootstrap.py as text  --------------->  the machine's Python runs it
    work folder, digest   --------------->  [1] is there an environment for this digest?
                          <---------------  [2] if not: {"send": "wheel"}
    length, wheel         --------------->  [3] make the environment, under a lock
                                            [4] execve: the same process becomes the agent

The script imports the standard library only, and of it no more than each step needs, because every connection waits for
it. An environment sees everything that the machine's Python sees. It is complete or absent, and its name is a digest of
the wheel and of the Python below it.
"""

from __future__ import annotations

import hashlib
import os
import sys

# The last file to be written into an environment: without it the environment is incomplete.
READY = "herringbone-ready"
OLDEST_PYTHON = (3, 10)
# The agent imports these; pip is asked only when one of them is missing.
NEEDED = ("msgspec", "yaml", "pathspec")


def main() -> None:
    """Become the agent, or send {"failed": why} and exit."""
    version = sys.version_info[:2]
    # In this machine's own encoding, which gives the same bytes again: a locale may lack letters of the name.
    folder, wheel = os.fsdecode(read_line()).rstrip("\n"), read_line().decode().rstrip("\n")
    # Expanded here: only this machine knows the home folder of the user who logs in.
    work = os.path.expanduser(folder)  # noqa: PTH111 - `os` is loaded anyway, and pathlib costs milliseconds
    try:
        if version < OLDEST_PYTHON:
            raise RuntimeError(
                f"its Python is {version[0]}.{version[1]}, and 3.10 or newer is needed; name one with `python:`"
            )
        # 0700: the folder holds the code and the data of this user's jobs.
        os.makedirs(work, 0o700, exist_ok=True)  # noqa: PTH103
        python = environment(work, wheel)
        os.chdir(work)
    except OSError as error:
        fail(f"its work folder {work} cannot be used: {error}")
    except RuntimeError as error:
        fail(str(error))
    path = os.environ.get("PATH", os.defpath)
    # First in PATH: scripts that run `python` get the environment's one.
    variables = {**os.environ, "PATH": f"{os.path.dirname(python)}{os.pathsep}{path}"}  # noqa: PTH120
    if sys.getfilesystemencoding() != "utf-8":
        # A locale such as Latin-1 lacks letters that code, files and variables of other machines have.
        variables["PYTHONUTF8"] = "1"
    # [4] execve keeps the pid and the descriptors 0 and 1, so the client's pipes lead to the agent from now on.
    # `-m` looks for modules in the current folder first; the work folder is ours and has none.
    os.execve(python, [python, "-m", "herringbone.backends.ssh.agent", work], variables)  # noqa: S606


def fail(why: str) -> None:
    """Send the reason to the client, which includes it in its `HostError`, and exit."""
    tell({"failed": why})
    sys.exit(3)


def tell(message: dict[str, str]) -> None:
    """Send a message to the client."""
    import json

    os.write(1, json.dumps(message).encode() + b"\n")


def read_line() -> bytes:
    """Read to the end of a line and not a byte further."""
    line = b""
    while not line.endswith(b"\n"):
        # A byte at a time, without `sys.stdin`: a buffer would swallow bytes that belong to the agent.
        byte = os.read(0, 1)
        if not byte:
            sys.exit(3)
        line += byte
    return line


def read(size: int) -> bytes:
    """Read exactly `size` bytes; exit when the client closes the connection first."""
    pieces = []
    while size:
        # A pipe returns what it holds at the moment, often less than was asked for.
        piece = os.read(0, min(size, 1 << 20))
        if not piece:
            sys.exit(3)
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def environment(work: str, wheel: str) -> str:
    """Return the Python of the environment for a wheel's digest; make the environment when it is missing."""
    # Another Python below, or the same one at another place, may have other packages or another ABI.
    key = "\0".join((wheel, sys.version, sys.prefix))
    folder = f"{work}/environments/{hashlib.sha256(key.encode()).hexdigest()[:24]}"
    python = f"{folder}/bin/python"
    if os.path.exists(f"{folder}/{READY}"):  # noqa: PTH110
        return python
    # Imported only now: most connections find their environment.
    import fcntl
    import shutil

    tell({"send": "wheel"})
    content = read(int(read_line()))
    if hashlib.sha256(content).hexdigest() != wheel:
        raise RuntimeError("the wheel was damaged on the way; try again")
    os.makedirs(f"{work}/environments", exist_ok=True)  # noqa: PTH103
    # The lock's file is next to the folder, not in it, because the folder itself is removed below.
    with open(f"{folder}.lock", "w") as lock:  # noqa: PTH123
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Another connection may have made the environment while this one waited for the lock.
        if not os.path.exists(f"{folder}/{READY}"):  # noqa: PTH110
            # A connection that broke half way may have left an incomplete folder.
            shutil.rmtree(folder, ignore_errors=True)
            make(folder, python, content)
    return python


def make(folder: str, python: str, content: bytes) -> None:
    """Make an environment from the bytes of a wheel. Raises `RuntimeError` with the last words of a failing program."""
    import io
    import site
    import subprocess
    import zipfile

    # Without pip, which would cost seconds; the machine's own pip installs into the environment with `--python`.
    run([sys.executable, "-m", "venv", "--without-pip", folder], "an environment cannot be made")
    library = f"{folder}/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    # `addsitedir` and not bare paths: packages installed below in editable form work through .pth files of their own.
    parents = [*site.getsitepackages(), site.getusersitepackages()]
    with open(f"{library}/_herringbone_parent.pth", "w") as file:  # noqa: PTH123
        file.writelines(f"import site; site.addsitedir({parent!r})\n" for parent in parents)
    with zipfile.ZipFile(io.BytesIO(content)) as wheel:
        # Safe to unpack as it is: the content has the digest that the client asked for.
        wheel.extractall(library)
        metadata = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    find = f"import importlib.util, sys; sys.exit(not all(map(importlib.util.find_spec, {NEEDED})))"
    if subprocess.run([python, "-c", find], stdin=subprocess.DEVNULL).returncode:
        with open(f"{library}/{metadata}") as file:  # noqa: PTH123
            requirements = [line.partition(":")[2].strip() for line in file if line.startswith("Requires-Dist:")]
        pip = [sys.executable, "-m", "pip", "--python", python, "install", "--no-input", "--quiet"]
        # A requirement with a marker (`;`) belongs to an extra, which the agent does not need.
        pip += ["--disable-pip-version-check", *(line for line in requirements if ";" not in line)]
        run(pip, f"its Python does not have all of {', '.join(NEEDED)}, and pip cannot install them")
    # Last: from this moment on other connections use the environment without the lock.
    with open(f"{folder}/{READY}", "w"):  # noqa: PTH123
        pass


def run(command: list[str], failure: str) -> None:
    """Run a program. Raises `RuntimeError` with `failure` and the program's last lines when it fails."""
    import subprocess

    # No standard input: ours is the client's pipe, and a program that reads would take the agent's messages.
    # Standard output is captured for the same reason: the client expects messages there.
    result = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if result.returncode:
        last_lines = " ".join((result.stdout.strip().splitlines() or ["no reason given"])[-3:])
        raise RuntimeError(f"{failure}: {last_lines}")


if __name__ == "__main__":
    main()
