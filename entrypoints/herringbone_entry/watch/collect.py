"""Look at the processes of this host's ranks: their Python stacks, the kernel's view of them, their connections.

A rank and its forked children write their stacks to one file when they get a signal (`ranks.rank`). A process that does
not catch the signal would be killed by it, so such a process is only described. All ranks are asked at the same time,
and the processes of one rank after each other.

Source for the files below /proc: proc(5).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from herringbone_entry import processes
from herringbone_entry.channel.attach import STACKS_SIGNAL
from herringbone_entry.watch import dump_text

# A running process needs less than a millisecond for its stacks. One that waits in the kernel cannot write them.
_PROCESS_SECONDS = 0.6
_TOTAL_SECONDS = 2.0
_LOOK_AGAIN_SECONDS = 0.005
_MAX_DUMP_BYTES = 1 << 20
_MAX_PROCESSES = 17
_MAX_CONNECTIONS = 64
_ESTABLISHED = "01"
# Letters of /proc/PID/status for a process that takes no signals now: stopped, stopped by a debugger, ended.
_DEAF = "TtZX"


class Target(NamedTuple):
    """A rank to look at: its process, and the file to which it writes its stacks."""

    pid: int
    path: str


class Look:
    """The processes of one rank, looked at one after the other; call `step` until `over`."""

    def __init__(self, target: Target, parents: Mapping[int, int]) -> None:
        self._path = target.path
        children = processes.descendants(target.pid, parents)
        self._waiting = [target.pid, *children][:_MAX_PROCESSES]
        self.found: list[dict[str, Any]] = []
        # Of the process that has got the signal: its facts, the file's size and the deaf threads before, a deadline.
        self._current: tuple[dict[str, Any], int, set[str], float] | None = None

    @property
    def over(self) -> bool:
        """True if every process has been looked at."""
        return self._current is None and not self._waiting

    def step(self, now: float) -> None:
        """Begin with the next process, or see whether the last one has written its stacks."""
        if self._current is None:
            if self._waiting:
                self._begin(self._waiting.pop(0), now)
            return
        facts, start, deaf, deadline = self._current
        written = _size(self._path) > start and not (_deaf_threads(facts["pid"]) - deaf)
        if written or now > deadline:
            facts["threads"] = _shorten(dump_text.parse_dump(_read_from(self._path, start)))
            self._current = None

    def _begin(self, pid: int, now: float) -> None:
        status = processes.read_text(f"/proc/{pid}/status")
        if status is None:
            return
        state = processes.status_field(status, "State")[:1]
        facts = {
            "pid": pid,
            "name": processes.status_field(status, "Name")[:64],
            "state": state,
            "wchan": _wchan(pid),
            "threads": [],
        }
        self.found.append(facts)
        if state in _DEAF or not processes.caught(status, STACKS_SIGNAL, unknown=False) or not _holds(pid, self._path):
            return
        self._current = (facts, _size(self._path), _deaf_threads(pid), now + _PROCESS_SECONDS)
        with contextlib.suppress(OSError):
            os.kill(pid, STACKS_SIGNAL)


def look(targets: Mapping[int, Target]) -> dict[int, dict[str, Any]]:
    """Return for each rank its processes, the rank's own first, and its TCP connections.

    >>> look({})
    {}

    Blocks for up to two seconds, so a thread of its own calls it.
    """
    parents = processes.parents()
    for target in targets.values():
        with contextlib.suppress(OSError):
            # Earlier dumps have been read; ranks append, so the next one begins at the start.
            os.truncate(target.path, 0)
    looks = {rank: Look(target, parents) for rank, target in targets.items()}
    deadline = time.monotonic() + _TOTAL_SECONDS
    while any(not look.over for look in looks.values()) and time.monotonic() < deadline:
        for each in looks.values():
            each.step(time.monotonic())
        time.sleep(_LOOK_AGAIN_SECONDS)
    return {
        rank: {"processes": looks[rank].found, "connections": _connections(target.pid)}
        for rank, target in targets.items()
    }


def tcp_connections(table: str, inodes: set[str]) -> list[tuple[str, str, bool]]:
    """Read (own address, peer's address, stuck) of established connections from the text of /proc/PID/net/tcp.

    >>> row = "0: 0100007F:1F90 0100007F:0050 01 00000010:00000000 01:00000014 00000003 0 0 77 2"
    >>> tcp_connections(f"heading\\n{row}\\n", {"77"})
    [('0100007F:1F90', '0100007F:0050', True)]

    Addresses are the kernel's own text. A connection is stuck if bytes were sent again and nobody has confirmed them.
    """
    rows = (line.split() for line in table.splitlines()[1:])
    return [
        (row[1], row[2], int(row[6], 16) > 0 and not row[4].startswith("00000000:"))
        for row in rows
        if len(row) > 9 and row[3] == _ESTABLISHED and row[9] in inodes
    ][:_MAX_CONNECTIONS]


def _connections(pid: int) -> list[tuple[str, str, bool]]:
    inodes = {link[len("socket:[") : -1] for link in _open_files(pid) if link.startswith("socket:[")}
    tables = (processes.read_text(f"/proc/{pid}/net/{name}") or "" for name in ("tcp", "tcp6"))
    return [connection for table in tables for connection in tcp_connections(table, inodes)][:_MAX_CONNECTIONS]


def _holds(pid: int, path: str) -> bool:
    """Say whether a process still has its file of stacks: a script may have closed it, and opened another file."""
    return str(Path(path).resolve()) in _open_files(pid)


def _open_files(pid: int) -> set[str]:
    links = set()
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                links.add(str(entry.readlink()))
    return links


def _deaf_threads(pid: int) -> set[str]:
    """Return the threads of a process that block the signal, as each one does while it writes the stacks."""
    bit = 1 << (STACKS_SIGNAL - 1)
    deaf: set[str] = set()
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            status = processes.read_text(f"{task}/status")
            if status is not None and int(processes.status_field(status, "SigBlk") or "0", 16) & bit:
                deaf.add(task.name)
    return deaf


def _wchan(pid: int) -> str:
    # "0" where the kernel hides it from us.
    text = (processes.read_text(f"/proc/{pid}/wchan") or "").strip()
    return "" if text == "0" else text[:64]


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0


def _read_from(path: str, start: int) -> str:
    try:
        with Path(path).open("rb") as file:
            file.seek(start)
            return file.read(_MAX_DUMP_BYTES).decode("utf-8", "backslashreplace")
    except OSError:
        return ""


def _shorten(threads: tuple[dump_text.Thread, ...]) -> list[dict[str, Any]]:
    return [{"name": thread.name, "frames": [list(frame) for frame in thread.frames]} for thread in threads]
