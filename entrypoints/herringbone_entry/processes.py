"""Child processes: start them, look at them, end them and every process that they left running.

A rank starts ahead of the supervisor's own imports (`ranks.prewarm`), so this module reads /proc with `open`: pathlib
would delay that start by milliseconds.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence

_PR_SET_CHILD_SUBREAPER, _PR_SET_PDEATHSIG = 36, 1
# An ignored signal stays ignored in a child: Python ignores SIGPIPE, a shell's `&` SIGINT and SIGQUIT, `nohup` SIGHUP.
_RESTORED_SIGNALS = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}


def spawn(
    argv: list[str], environment: Mapping[str, str], *, stdout: int, stderr: int, inherit: Sequence[int] = ()
) -> int:
    """Start a program in a process group of its own and return its pid.

    Its standard input is empty and it ignores no signal. Descriptors in `inherit` keep their number in the child.
    """
    actions: list[tuple[int, ...]] = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),  # type: ignore[list-item]
        (os.POSIX_SPAWN_DUP2, stdout, 1),
        (os.POSIX_SPAWN_DUP2, stderr, 2),
    ]
    # A descriptor that is duplicated onto itself loses its close-on-exec flag, in the child alone.
    actions += [(os.POSIX_SPAWN_DUP2, descriptor, descriptor) for descriptor in inherit]
    # posix_spawn, not fork: the kernel does not copy the supervisor's page tables, and no Python runs in the child.
    # A process group of its own keeps a terminal's Ctrl-C away from ranks: the supervisor decides about a stop.
    return os.posix_spawn(
        argv[0], argv, environment, file_actions=actions, setpgroup=0, setsigdef=_RESTORED_SIGNALS, setsigmask=()
    )


def send(pid: int, number: int) -> None:
    """Signal one process; a process that is gone already is no error."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def reap() -> list[tuple[int, int]]:
    """Return (pid, return code, negative for a signal) of each child that has ended by now."""
    ended = []
    # The kernel merges SIGCHLDs that arrive together, so one signal may stand for several children.
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
        # WNOWAIT looks at a child that has ended and leaves it for `reap`, which needs its exit code.
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def handles(pid: int, number: int) -> bool:
    """Say whether a process catches a signal; without /proc, assume that it does."""
    status = read_text(f"/proc/{pid}/status")
    return status is None or caught(status, number)


def caught(status: str, number: int, *, unknown: bool = True) -> bool:
    """Read the mask of caught signals from the text of /proc/PID/status; return `unknown` if it has none.

    >>> caught("SigCgt:\\t0000000000004000", signal.SIGTERM)
    True
    """
    for line in status.splitlines():
        if line.startswith("SigCgt:"):
            # Bit 0 of the mask is signal 1.
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return unknown


def exit_code_before_reaping(pid: int) -> int | None:
    """Return the exit code of another process's child that ends or has ended, None while nothing is known.

    Raises `ProcessLookupError` when its parent has reaped it. Linux only; elsewhere nothing is known.
    """
    if sys.platform != "linux":
        return None
    text = read_text(f"/proc/{pid}/stat")
    if text is None:
        raise ProcessLookupError
    return shown_exit_code(text)


def shown_exit_code(stat: str) -> int | None:
    """Read the exit code from the text of /proc/PID/stat, which shows it as soon as the process begins to end.

    >>> shown_exit_code("7 (python) R " + "0 " * 48 + "15")
    143

    None for a process that lives, or ends with 0.
    """
    # The last field, in the form of wait(2): a signal and a flag for a core in the low byte, an exit code above it.
    status = int(stat.rpartition(")")[2].split()[49])
    number = status & 0x7F
    return (128 + number if number else status >> 8) or None


def is_ending(pid: int) -> bool:
    """Say whether a process has begun to end, or is gone."""
    text = read_text(f"/proc/{pid}/stat")
    # Of the fields behind the name, the first is the state, and the seventh has the kernel's flags: PF_EXITING is 4.
    fields = (text or "").rpartition(")")[2].split()
    return not fields or fields[0] in "ZX" or bool(int(fields[6]) & 4)


def name_and_state(pid: int) -> str:
    """Return the name and the state of a process, such as "python, D (disk sleep)"."""
    status = read_text(f"/proc/{pid}/status") or ""
    return f"{status_field(status, 'Name') or 'unknown'}, {status_field(status, 'State') or 'ended'}"


def status_field(status: str, name: str) -> str:
    """Read a field from the text of /proc/PID/status; "" if it is not there.

    >>> status_field("Name:\\tpython\\nState:\\tD (disk sleep)\\n", "State")
    'D (disk sleep)'
    """
    for line in status.splitlines():
        if line.startswith(f"{name}:"):
            return line.partition(":")[2].strip()
    return ""


def is_stopped(pid: int) -> bool:
    """Say whether a signal has stopped a process; one that computes, sleeps or is traced by a debugger is not."""
    text = read_text(f"/proc/{pid}/stat")
    return text is not None and text.rpartition(") ")[2].startswith("T")


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, so that none escapes us (Linux only)."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends.

    Linux only; elsewhere the process may outlive a supervisor that was killed.
    """
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # A parent that ended before the call above sends no signal; the process then has another parent already.
    if os.getppid() != parent:
        os._exit(1)


def descendants(root: int, parents: Mapping[int, int]) -> list[int]:
    """Return the pids below `root`, given each process's parent.

    >>> descendants(1, {2: 1, 3: 2, 9: 8})
    [2, 3]
    """
    family = {root}
    # A child may come before its parent in the mapping, so repeat until a pass adds nobody.
    while children := {pid for pid, parent in parents.items() if parent in family and pid not in family}:
        family |= children
    return sorted(family - {root})


def kill_descendants() -> None:
    """Kill every process below this one."""
    for pid in descendants(os.getpid(), parents()):
        send(pid, signal.SIGKILL)


def parents() -> dict[int, int]:
    """Return each process's parent; without /proc, an empty dict."""
    family: dict[int, int] = {}
    try:
        names = os.listdir("/proc")  # noqa: PTH208 - as in `_read`
    except OSError:
        return family
    for name in names:
        # A process may end between the listing and the read.
        if name.isdigit() and (text := read_text(f"/proc/{name}/stat")) is not None:
            # The command's name, in parentheses, may itself hold spaces and parentheses.
            family[int(name)] = int(text.rpartition(")")[2].split()[1])
    return family


def read_text(path: str) -> str | None:
    """Return the text of a file below /proc; None if it cannot be read, for example when its process has ended."""
    try:
        with open(path, errors="replace") as file:  # noqa: PTH123 - pathlib costs milliseconds before a rank's start
            return file.read()
    except OSError:
        return None
