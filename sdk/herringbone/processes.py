"""Processes as the system tells of them: who is whose child, and whether a process is still the same one.

A process id alone says little: it is given out again. With the moment of its start it names one process for good.
"""

from __future__ import annotations

import contextlib
import os
import sys

_PROC = "/proc"
# In /proc/PID/stat, counted from what follows the closing parenthesis of the name.
_STATE, _PARENT, _START = 0, 1, 19


def identity(pid: int) -> str | None:
    """Return a name for this very process, None when there is none or it is a zombie.

    >>> identity(os.getpid()) == identity(os.getpid())
    True
    """
    fields = _stat(pid) if sys.platform == "linux" else _ps(pid)
    if fields is None or fields[_STATE].startswith("Z"):
        return None
    return f"{pid}@{fields[_START]}"


def is_alive(name: str) -> bool:
    """Say whether the process that `identity` named still runs; one of our own children is reaped on the way."""
    pid = pid_of(name)
    if identity(pid) == name:
        return True
    _reap(pid, name)
    return False


def pid_of(name: str) -> int:
    return int(name.partition("@")[0])


def descendants(roots: set[int]) -> set[int]:
    """Return every process below these, zombies left out. Linux only; elsewhere the answer is empty."""
    if sys.platform != "linux":
        return set()
    children: dict[int, list[int]] = {}
    zombies = set()
    for entry in os.listdir(_PROC):  # noqa: PTH208 - pathlib costs the controller milliseconds
        fields = _stat(int(entry)) if entry.isdigit() else None
        if fields is not None:
            children.setdefault(int(fields[_PARENT]), []).append(int(entry))
            if fields[_STATE] == "Z":
                zombies.add(int(entry))
    found: set[int] = set()
    todo = list(roots)
    while todo:
        below = [pid for pid in children.get(todo.pop(), ()) if pid not in found]
        found.update(below)
        todo += below
    return found - zombies


def _stat(pid: int) -> list[str] | None:
    try:
        with open(f"{_PROC}/{pid}/stat", "rb") as file:  # noqa: PTH123 - pathlib costs the controller milliseconds
            return file.read().rpartition(b") ")[2].decode().split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def _ps(pid: int) -> list[str] | None:
    """Return what `_stat` would, as far as `ps` knows it."""
    import subprocess

    run = subprocess.run(
        ["ps", "-o", "stat=,ppid=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    fields = run.stdout.split(maxsplit=2)
    if len(fields) < 3:
        return None
    return [fields[0], fields[1], *[""] * (_START - 2), fields[2].strip().replace(" ", "-")]


def _reap(pid: int, name: str) -> None:
    fields = _stat(pid) if sys.platform == "linux" else None
    if fields is not None and fields[_START] == name.partition("@")[2]:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
