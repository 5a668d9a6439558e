"""Cause one fault on this host, for a rehearsal: `python -m herringbone_entry.faults KIND SECONDS`.

    kind        what is done, and the meaning of SECONDS
    wait        nothing; return so long after the first checkpoint is complete
    rank        kill the last rank of the host
    lost        kill every process of the host
    frozen      stop every process of the host, and let it go on after so long
    notice      SIGTERM to the supervisor, as platforms announce that they take the host away
    controller  kill the job's controller, where it runs on this machine
    links       shut down the connections of the host's supervisor and ranks, and those of nobody else
    torn        kill the first rank as soon as a save changes the folder of checkpoints, within so long
    full        limit the files of the ranks to half of a checkpoint's largest one, until a save has met the limit

A client starts it through `Backend.access`, so it finds the job by the variables of `herringbone_entry.enter`. It reads
/proc: elsewhere than on Linux it can do nothing. The exit code says why nothing was done; see `Done`.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import errno
import os
import resource
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from herringbone_contract.constants import BASE_VARIABLE, HostVariable
from herringbone_entry.processes import read_text, send

_LOOK_SECONDS = 0.002
# A checkpoint that has not changed for so long, or is there for so long, is complete.
_SETTLED_SECONDS, _LONG_SECONDS = 0.2, 5.0
# The number of the system call is the same on all machines.
_PIDFD_GETFD = 438
_OBSERVER, _RANK, _CONTROLLER = "herringbone_entry.observer", "herringbone_entry.ranks.rank", "herringbone.controller"


class Done(enum.IntEnum):
    """The exit codes. Those above 0 say why there was no fault."""

    YES = 0
    NO_PROCESS = 10
    REFUSED = 11
    NO_SAVE = 12


class Process(NamedTuple):
    """A process of this machine, and the words of its command."""

    pid: int
    parent: int
    words: Sequence[str]


def processes() -> list[Process]:
    """Return the processes that can be seen here, the oldest first."""
    found = []
    for name in sorted(filter(str.isdigit, os.listdir("/proc")), key=int):  # noqa: PTH208
        stat_text, words = read_text(f"/proc/{name}/stat"), read_text(f"/proc/{name}/cmdline")
        # A process may end between the listing and the read.
        if stat_text and words is not None:
            parent = int(stat_text.rpartition(")")[2].split()[1])
            found.append(Process(int(name), parent, words.split("\0")[:-1]))
    return found


def below(pid: int, running: Sequence[Process]) -> list[Process]:
    """Return a process and all that it has started, the first of them first. Pure.

    >>> [one.pid for one in below(2, [Process(1, 0, ()), Process(2, 1, ()), Process(3, 2, ()), Process(4, 3, ())])]
    [2, 3, 4]
    """
    family = [one for one in running if one.pid == pid]
    for member in family:
        family += [one for one in running if one.parent == member.pid]
    return family


def ranks_in(family: Sequence[Process]) -> list[Process]:
    """Return the ranks below a supervisor, which is the first of `family`; [] for one that is gone. Pure.

    A rank is a Python with our program. Its children, such as a loader's workers, have the same command. Under another
    Python, or another program, ranks are the supervisor's children apart from the observer.
    """
    ours = [one for one in family if one.words[1:2] == ["-c"] and any(_RANK in word for word in one.words)]
    pids = {one.pid for one in ours}
    if first := [one for one in ours if one.parent not in pids]:
        return first
    children = [one for one in family if one.parent == family[0].pid]
    return [one for one in children if not any(_OBSERVER in word for word in one.words)]


def family_here() -> list[Process]:
    """Return the supervisor of this host and all processes below it; [] once it is gone."""
    running, base = processes(), os.environ.get(BASE_VARIABLE)
    if base is None or os.getppid() == 0:
        # In a container.
        return below(1, running)
    mark = f"{BASE_VARIABLE}={base}"
    for one in running:
        # The whole command: srun's ends like it.
        is_supervisor = list(one.words[1:]) == ["-m", "herringbone_entry"]
        if is_supervisor and mark in (read_text(f"/proc/{one.pid}/environ") or "").split("\0"):
            return below(one.pid, running)
    return []


def signal_all(family: Sequence[Process], number: int) -> Done:
    """Signal processes; those that are gone count as signalled."""
    for one in family:
        if one.pid != os.getpid():
            send(one.pid, number)
    return Done.YES if family else Done.NO_PROCESS


Marks = dict[str, tuple[int, int, int]]


def files_of(folder: str) -> Marks:
    """Return inode, time of the last change and size of each file below a folder, by its path."""
    marks: Marks = {}
    # A link leads to the folder that the user has named.
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                status = os.lstat(path := f"{place}/{name}")
                if stat.S_ISREG(status.st_mode):
                    marks[path] = status.st_ino, status.st_mtime_ns, status.st_size
    return marks


def is_whole(path: str, folder: str) -> bool:
    """Report whether a file is no part of a save that runs: names of those begin with a dot. Pure."""
    return not any(part.startswith(".") for part in path[len(folder) :].split("/"))


def await_checkpoint(folder: str, look: Callable[[str], Marks] = files_of) -> bool:
    """Return once a checkpoint is complete; False when the host ends before."""
    first = since = time.monotonic()
    before: Marks = {}
    while True:
        now, marks = time.monotonic(), look(folder)
        whole = {path: mark for path, mark in marks.items() if is_whole(path, folder)}
        if not whole:
            first = now
        # A file that took another's place by a rename is complete, and so was the other.
        replaced = any(before.get(path, mark)[0] != mark[0] for path, mark in whole.items())
        if whole != before:
            before, since = whole, now
        if replaced or (whole and (now - since > _SETTLED_SECONDS or now - first > _LONG_SECONDS)):
            return True
        if not whole and not family_here():
            return False
        time.sleep(_LOOK_SECONDS * 10)


def changes(folder: str, before: Marks, seconds: float, pid: int) -> Iterator[Marks]:
    """Yield the files of a folder whenever they are others than before, for so long, while a process lives."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and read_text(f"/proc/{pid}/cmdline"):
        if (marks := files_of(folder)) != before:
            before = marks
            yield marks
        time.sleep(_LOOK_SECONDS)


def tear(folder: str, seconds: float) -> Done:
    """Kill the first rank in its next save."""
    ranks = ranks_in(family_here())
    if not ranks:
        return Done.NO_PROCESS
    for _ in changes(folder, files_of(folder), seconds, ranks[0].pid):
        return signal_all(below(ranks[0].pid, processes()), signal.SIGKILL)
    return Done.NO_SAVE


def fill(folder: str, seconds: float) -> Done:
    """Let no rank write a file larger than half of a checkpoint's largest one, until a save has met that limit.

    A write beyond it fails with EFBIG where a full disk's fails with ENOSPC. Both are an `OSError` in the middle of a
    save, and no other job's disk is full.
    """
    ranks = ranks_in(family_here())
    if not ranks:
        return Done.NO_PROCESS
    files = files_of(folder)
    limit = max(1, max((size for _, _, size in files.values()), default=0) // 2)
    limits = {one.pid: resource.prlimit(one.pid, resource.RLIMIT_FSIZE) for one in ranks}
    try:
        for pid, (_, hard) in limits.items():
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit, hard))
        for marks in changes(folder, files, seconds, ranks[0].pid):
            if any(size == limit for _, _, size in marks.values()):
                # The save sees more than one failed write.
                time.sleep(_SETTLED_SECONDS)
                return Done.YES
    finally:
        for pid, before in limits.items():
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
    return Done.YES if not ranks_in(family_here()) else Done.NO_SAVE


def cut(family: Sequence[Process]) -> Done:
    """Shut down the connections of these processes: for both sides they end as over a cable that is cut."""
    library, number = ctypes.CDLL(None, use_errno=True), 0
    for one in family:
        try:
            pidfd = os.pidfd_open(one.pid)
            descriptors = os.listdir(f"/proc/{one.pid}/fd")  # noqa: PTH208
        except OSError:
            continue
        for name in descriptors:
            with contextlib.suppress(OSError):
                if not os.readlink(f"/proc/{one.pid}/fd/{name}").startswith("socket:"):  # noqa: PTH115
                    continue
                copy = library.syscall(_PIDFD_GETFD, pidfd, int(name), 0)
                if copy < 0 and ctypes.get_errno() in (errno.EPERM, errno.ENOSYS):
                    return Done.REFUSED
                if copy < 0:
                    continue
                with socket.socket(fileno=copy) as connection:
                    # Pairs of sockets, which have no name, join processes of one host.
                    if connection.type == socket.SOCK_STREAM and (connection.getpeername() or connection.getsockname()):
                        connection.shutdown(socket.SHUT_RDWR)
                        number += 1
        os.close(pidfd)
    return Done.YES if number else Done.NO_PROCESS


def freeze(seconds: float) -> Done:
    """Stop all processes of this host for a while."""
    family = family_here()
    signal_all(family, signal.SIGSTOP)
    time.sleep(seconds)
    return signal_all(family, signal.SIGCONT)


def cause(kind: str, seconds: float, folder: str) -> Done:
    """Cause a fault of this kind."""
    if kind == "wait":
        if not await_checkpoint(folder):
            return Done.NO_SAVE
        time.sleep(seconds)
        return Done.YES if family_here() else Done.NO_PROCESS
    if kind == "torn":
        return tear(folder, seconds)
    if kind == "full":
        return fill(folder, seconds)
    if kind == "frozen":
        return freeze(seconds)
    family = family_here()
    if kind == "lost":
        return signal_all(family, signal.SIGKILL)
    if kind == "notice":
        return signal_all(family[:1], signal.SIGTERM)
    if kind == "controller":
        name = os.environ.get(HostVariable.JOB_NAME, "")
        return signal_all(
            [one for one in processes() if _CONTROLLER in one.words and name in one.words], signal.SIGKILL
        )
    ranks = ranks_in(family)
    if kind == "links":
        return cut([*family[:1], *ranks])
    return signal_all(ranks[-1:], signal.SIGKILL)


def main() -> None:
    """Cause the fault that the arguments name."""
    # Ctrl-C reaches the client as well, which ends the job, and with it this program.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform != "linux":
        sys.exit(Done.REFUSED)
    try:
        sys.exit(cause(sys.argv[1], float(sys.argv[2]), os.environ["SM_CHECKPOINT_DIR"]))
    except PermissionError:
        sys.exit(Done.REFUSED)


if __name__ == "__main__":
    main()
