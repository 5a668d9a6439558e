"""Identify processes, find their descendants, and the memory that is left, on Linux and on macOS.

The system reuses process ids. A process id together with its start time identifies one process for good.
"""

from __future__ import annotations

import contextlib
import os
import sys

_PROC = "/proc"
# The PID namespace that a Linux machine starts with; a container has another one.
_FIRST_NAMESPACE = "pid:[4026531836]"
# Fields of /proc/PID/stat, counted after the closing parenthesis of the name, which may itself hold spaces.
_STATE, _PARENT, _START = 0, 1, 19


def identity(pid: int) -> str | None:
    """Return an identifier for a running process, None if it does not exist or is a zombie.

    >>> identity(os.getpid()) == identity(os.getpid())
    True
    """
    fields = _stat(pid) if sys.platform == "linux" else _ps(pid)
    if fields is None or fields[_STATE].startswith("Z"):
        return None
    return f"{pid}@{fields[_START]}"


def is_alive(name: str) -> bool:
    """Return True if the process that `identity` identified still runs. Reaps it if it is a child of ours."""
    pid = pid_of(name)
    if identity(pid) == name:
        return True
    _reap(pid, name)
    return False


def is_stopped(name: str) -> bool:
    """Return True if the process that `identity` identified is one of this machine that a signal has stopped.

    A pid alone is enough for a child that nobody else reaps.
    """
    fields = _stat(pid_of(name)) if sys.platform == "linux" else None
    return fields is not None and name.partition("@")[2] in (fields[_START], "") and fields[_STATE] == "T"


def place() -> str:
    """Return where this process's ids mean something: host name, machine, boot and PID namespace.

    >>> place().count(" ")
    3

    Parts that the system does not have are "-".
    """
    namespace = "-"
    with contextlib.suppress(OSError):
        namespace = os.readlink(f"{_PROC}/self/ns/pid")  # noqa: PTH115 - pathlib costs the controller milliseconds
    machine, boot = _first_word("/etc/machine-id"), _first_word(f"{_PROC}/sys/kernel/random/boot_id")
    return " ".join((os.uname().nodename or "-", machine, boot, namespace))


def sees(other: str, here: str | None = None) -> bool | None:
    """Return True if processes of the place `other` are visible here, False if none of them can exist any more.

    >>> here = "node-1 a1 boot-1 pid:[4026531836]"
    >>> sees(here, here), sees("node-2 a2 boot-7 pid:[4026531836]", here)
    (True, None)

    None means that nobody can know from here: another machine, or another container.
    """
    here = place() if here is None else here
    if other.split()[2:] == here.split()[2:] and (other.split()[2] != "-" or other == here):
        return True
    node, machine, _, namespace = other.split()
    # A machine that was started again. Copies of one disk have the same machine id, and containers one host name.
    if (node, machine, namespace) == tuple(here.split()[i] for i in (0, 1, 3)) and namespace == _FIRST_NAMESPACE:
        return False
    return None


def may_live(name: str, where: str | None) -> bool:
    """Return False if the process that `identity` identified at the place `where` is known to have ended.

    A process that cannot be seen from here may live. `where` is None for processes of this place.
    """
    visible = where is None or sees(where)
    return is_alive(name) if visible else visible is None


def pid_of(name: str) -> int:
    """Return the process id in an identifier."""
    return int(name.partition("@")[0])


def descendants(roots: set[int]) -> set[int]:
    """Return all descendants of these processes, without zombies. Linux only; elsewhere the result is empty."""
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
    below_roots: set[int] = set()
    todo = list(roots)
    while todo:
        below = [pid for pid in children.get(todo.pop(), ()) if pid not in below_roots]
        below_roots.update(below)
        todo += below
    # A zombie has ended, although /proc lists it until its parent reaps it.
    return below_roots - zombies


def _first_word(path: str) -> str:
    try:
        with open(path) as file:  # noqa: PTH123 - pathlib costs the controller milliseconds
            return (file.read().split() or ["-"])[0]
    except OSError:
        return "-"


def _stat(pid: int) -> list[str] | None:
    try:
        with open(f"{_PROC}/{pid}/stat", "rb") as file:  # noqa: PTH123 - pathlib costs the controller milliseconds
            return file.read().rpartition(b") ")[2].decode().split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def _ps(pid: int) -> list[str] | None:
    """Return the fields of `_stat` that this module reads, from `ps`; the others are empty."""
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
    # The id may belong to another child of ours by now, whose exit status its own owner must collect.
    if fields is not None and fields[_START] == name.partition("@")[2]:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def free_memory() -> int | None:
    """Return the memory that this machine, or this control group, has left; None where the system does not tell."""
    found: list[int] = []
    with contextlib.suppress(OSError, ValueError), open("/proc/meminfo") as file:  # noqa: PTH123 - no pathlib here
        found += [int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable:")]
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/self/cgroup") as file:  # noqa: PTH123
        group = f"/sys/fs/cgroup{file.read().splitlines()[-1].split(':', 2)[2]}"
        while group.startswith("/sys/fs/cgroup"):
            with contextlib.suppress(OSError, ValueError):
                found.append(max(0, _number(f"{group}/memory.max") - _number(f"{group}/memory.current")))
            group = os.path.dirname(group)  # noqa: PTH120
    return min(found, default=None)


def _number(path: str) -> int:
    with open(path) as file:  # noqa: PTH123
        return int(file.read())
