"""Hosts that are processes of this machine: each a supervisor, the pipe that it writes to, and its end."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import time

from herringbone.controller.descriptors import KEY_FD, LIFELINE_FD, RESTORED_SIGNALS
from herringbone.controller.hosts import Host
from herringbone.controller.log_files import LogFile
from herringbone.processes import descendants

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from herringbone.controller.config import Order, ProcessesOrder
    from herringbone.controller.hosts import Renewal
    from herringbone.controller.retry import Attempt

# The controller's own descriptors are kept above those that a supervisor is given.
_ABOVE = 10
_PIPE_BYTES = 1 << 20
_SECRET_BYTES = 32
# A killed process is gone in a millisecond, unless it hangs in a disk or a driver.
_SWEEP_SECONDS = 5.0


class ProcessHost(Host):
    """A running supervisor and its pid."""

    pid = 0

    def start(self, argv: list[str], environment: dict[str, str], *, lifeline: int, secret: bytes) -> None:
        """Start the supervisor in a session of its own. Raises `OSError`."""
        read_end, write_end = _pipe()
        _enlarge(read_end)
        actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, write_end, 1),
            (os.POSIX_SPAWN_DUP2, write_end, 2),
            (os.POSIX_SPAWN_DUP2, lifeline, LIFELINE_FD),
        ]
        key = _filled_pipe(secret) if secret else None
        if key is not None:
            actions.append((os.POSIX_SPAWN_DUP2, key, KEY_FD))
        try:
            self.pid = os.posix_spawnp(
                argv[0],
                argv,
                environment,
                file_actions=actions,
                setsid=True,
                setsigmask=[],
                setsigdef=RESTORED_SIGNALS,
            )
        except OSError:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
            if key is not None:
                os.close(key)
        os.set_blocking(read_end, False)
        self.output = read_end

    def signal(self, number: int) -> None:
        if self.exit_code is None and self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


class Processes:
    """The hosts of one job as our children."""

    def __init__(self, order: Order, processes: ProcessesOrder) -> None:
        self._order = processes
        self._entries = order["hosts"]
        self._run_folder = order["run_folder"]
        self.hosts = [ProcessHost(each, LogFile(f"{order['logs']}/{each['name']}.log")) for each in self._entries]
        self.failed: Sequence[Attempt] = ()
        self.places: dict[str, str] = {}

    def start(self) -> None:
        # The write end stays open as long as we live, and nobody else has it.
        line, self._lifeline = _pipe()
        secret = (self._order["key"] or "").encode()
        if not secret and len(self.hosts) > 1:
            secret = os.urandom(_SECRET_BYTES).hex().encode()
        for host in self.hosts:
            environment = {**self._order["environment"], **self._order["host_environments"][host.name]}
            host.start(self._order["argv"], environment, lifeline=line, secret=secret)
        os.close(line)
        become_reaper()

    def endings(self) -> Iterator[tuple[Host, int]]:
        """Take note of every child that ended, adopted orphans among them."""
        by_pid = {host.pid: host for host in self.hosts}
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            host = by_pid.get(pid)
            if host is not None:
                code = os.waitstatus_to_exitcode(status)
                yield host, 128 - code if code < 0 else code

    def sweep(self) -> None:
        """Kill what dead hosts left, and what that leaves in turn."""
        deadline = time.monotonic() + _SWEEP_SECONDS
        living = {host.pid for host in self.hosts if host.exit_code is None}
        while kill_orphans(living) and time.monotonic() < deadline:
            time.sleep(0.001)

    def rouse(self) -> None:
        for host in self.hosts:
            host.signal(signal.SIGCONT)

    def collect(self) -> None:
        self.sweep()

    def told(self, failed: Sequence[Attempt]) -> dict[str, Any]:  # noqa: ARG002 - no other controller goes on
        return {}

    def begin_anew(self, failed: Sequence[Attempt]) -> Renewal:
        """Have new hosts in the old ones' folders; their checkpoints stay."""
        import shutil

        self.failed = failed
        os.close(self._lifeline)
        for host in self.hosts:
            host.clear()
        shutil.rmtree(self._run_folder, ignore_errors=True)
        os.mkdir(self._run_folder, 0o700)  # noqa: PTH102
        self.hosts = [ProcessHost(each, host.log) for each, host in zip(self._entries, self.hosts, strict=True)]
        for host in self.hosts:
            host.log_begins = host.log.size
        return "here"

    def leave(self) -> None:
        pass

    def abandon(self) -> None:
        for host in self.hosts:
            host.signal(signal.SIGKILL)
        self.sweep()


def become_reaper() -> None:
    """Have orphans of this job become our children, so that none is lost. Linux; elsewhere nothing happens."""
    if sys.platform == "linux":
        import ctypes

        set_child_subreaper = 36
        ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)


def kill_orphans(living: set[int]) -> bool:
    """Kill what dead hosts left: all below us that is not below a living supervisor. Says whether there was any."""
    mine = descendants({os.getpid()})
    left = mine - living - descendants(living)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return bool(left)


def _pipe() -> tuple[int, int]:
    """Make a pipe whose descriptors cannot collide with those that a supervisor is given."""
    ends = os.pipe()
    moved = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, _ABOVE) for end in ends)
    for end in ends:
        os.close(end)
    return moved[0], moved[1]


def _filled_pipe(content: bytes) -> int:
    """Return the read end of a pipe that holds `content` and then ends."""
    read_end, write_end = _pipe()
    os.write(write_end, content)
    os.close(write_end)
    return read_end


def _enlarge(pipe: int) -> None:
    """Let a chatty host run on while we write; an unprivileged user may be over his limit, which is no matter."""
    size = getattr(fcntl, "F_SETPIPE_SZ", None)
    if size is not None:
        with contextlib.suppress(OSError):
            fcntl.fcntl(pipe, size, _PIPE_BYTES)
