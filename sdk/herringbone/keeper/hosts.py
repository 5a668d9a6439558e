"""One host of the job on this machine: its supervisor, the pipe it writes to, and its end."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import time

from herringbone.keeper.filing import LogFile
from herringbone.keeper.inheritance import KEY_FD, LIFELINE_FD, RESTORED_SIGNALS
from herringbone.processes import descendants

TYPE_CHECKING = False
if TYPE_CHECKING:
    from herringbone.keeper.order import HostOrder

# The keeper's own descriptors are kept above those that a supervisor is given.
_ABOVE = 10
_PIPE_BYTES = 1 << 20
_READ_BYTES = 1 << 20


class Host:
    """A running supervisor. `exit_code` is the shell's (128 + n for signal n), None while it runs."""

    def __init__(self, order: HostOrder, log: LogFile) -> None:
        self.name = order["name"]
        self.base = order["base"]
        self.log = log
        self.pid = 0
        self.exit_code: int | None = None
        self.ended_at = 0.0
        self.output: int | None = None

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

    @property
    def over(self) -> bool:
        """Whether the supervisor has ended and all that it wrote is filed."""
        return self.exit_code is not None and self.output is None

    def drain(self) -> None:
        """File what the pipe holds, once: a host that writes without end must not keep us from all else.

        At the pipe's end, close it.
        """
        if self.output is None:
            return
        try:
            chunk = os.read(self.output, _READ_BYTES)
        except BlockingIOError:
            return
        if chunk:
            self.log.feed(chunk, time.time())
        else:
            self.hang_up()

    def hang_up(self) -> None:
        """Stop reading, whoever still holds the other end."""
        if self.output is not None:
            os.close(self.output)
            self.output = None

    def signal(self, number: int) -> None:
        if self.exit_code is None and self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def lifeline() -> tuple[int, int]:
    """Return a pipe whose end-of-file, at the read end, says that the holder of the write end is gone."""
    return _pipe()


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
