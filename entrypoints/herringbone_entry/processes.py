"""Child processes: look at them, end them and whatever they left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36


def send(pid: int, number: signal.Signals) -> None:
    """Signal one process; one that is gone already is no error."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def reap() -> list[tuple[int, int]]:
    """Return (pid, return code, negative for a signal) of each child that has ended by now."""
    ended = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            break
        if pid == 0:
            break
        ended.append((pid, os.waitstatus_to_exitcode(status)))
    return ended


def has_children() -> bool:
    """Say whether any child is still to be reaped."""
    try:
        # Looks without taking: WNOWAIT leaves the child to `reap`.
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def handles(pid: int, number: signal.Signals) -> bool:
    """Say whether a process catches a signal; where that cannot be seen (no /proc), believe that it does."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True
    return caught(status, number)


def caught(status: str, number: signal.Signals) -> bool:
    """Read the mask of caught signals from the text of /proc/PID/status.

    >>> caught("SigCgt:\\t0000000000004000", signal.SIGTERM)
    True
    """
    for line in status.splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return True


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, so that none escapes us (Linux only)."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(root: int, parents: Mapping[int, int]) -> list[int]:
    """Return the pids below `root`, given each process's parent.

    >>> descendants(1, {2: 1, 3: 2, 9: 8})
    [2, 3]
    """
    found = {root}
    grown = True
    while grown:
        new = {pid for pid, parent in parents.items() if parent in found and pid not in found}
        found |= new
        grown = bool(new)
    return sorted(found - {root})


def kill_descendants() -> None:
    """Kill all that lives below this process."""
    for pid in descendants(os.getpid(), _parents()):
        send(pid, signal.SIGKILL)


def _parents() -> dict[int, int]:
    """Return each process's parent; without /proc, nothing."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # The name, in parentheses, may itself hold spaces and parentheses.
            fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(folder.name)] = int(fields[1])
    return parents
