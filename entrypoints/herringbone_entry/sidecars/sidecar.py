"""A sidecar: a program next to the ranks that is no rank, such as mpirun, one of its daemons, or a server."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence

from herringbone_contract.constants import EVENT_MARK
from herringbone_entry import processes
from herringbone_entry.host_context import HostContext
from herringbone_entry.ranks.lines import LineStream, Tail
from herringbone_entry.ranks.pipe import Pipe

# A program that ends by one of these signals did not crash: somebody sent the signal.
_KILLED_BY = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
# Open MPI prints this warning when its child left its process group first. It is harmless, and alarms users.
_NOISE = re.compile(rb"plm:[rs]sh: Warning: setpgid\(.*\) failed in parent with errno=Permission denied")


class LinesOfSidecar(LineStream):
    """Prefixed lines without the harmless warnings, and none of them taken for an event of the supervisor."""

    def _whole(self, lines: bytes) -> bytes:
        # The prefix is the supervisor's own, and parameter servers run code of the user's packages.
        lines = lines.replace(EVENT_MARK, b"")
        if _NOISE.search(lines):
            lines = b"".join(line for line in lines.splitlines(keepends=True) if not _NOISE.search(line))
        return super()._whole(lines) if lines else b""


class Sidecar:
    """Starts the program, prints its output with the host's prefix, and keeps its last lines.

    Descriptors in `inherit` keep their number in the program. It may end at any time: `RequiredSidecar` is for a
    program that must run as long as the ranks do.
    """

    def __init__(
        self, argv: list[str], environment: Mapping[str, str], context: HostContext, inherit: Sequence[int] = ()
    ) -> None:
        self._tail = Tail()
        # True once we have signalled it: its end says nothing from then on.
        self._signalled = False
        self._pipes = [
            Pipe(context.loop, context.output, LinesOfSidecar(context.prefix, self._tail), _ignore_end)
            for _ in range(2)
        ]
        stdout, stderr = self._pipes
        self.pid = processes.spawn(argv, environment, stdout=stdout.writer, stderr=stderr.writer, inherit=inherit)
        for pipe in self._pipes:
            # The program has its own copies; ours would keep the pipes from ending.
            pipe.close_writer()

    def signal(self, number: signal.Signals) -> None:
        """Signal the program."""
        self._signalled = True
        processes.send(self.pid, number)

    def wake(self) -> None:
        """End a sleep of the program, by a signal that it takes for the end of a child."""
        processes.send(self.pid, signal.SIGCHLD)

    def was_killed(self, returncode: int) -> bool:
        """Say whether somebody else killed the program, given how it ended (negative for a signal)."""
        return not self._signalled and -returncode in _KILLED_BY

    def mute(self) -> None:
        """Print nothing more: its complaints about a job that ends only follow from that end."""
        for pipe in self._pipes:
            pipe.mute()

    def last_lines(self) -> tuple[str, ...]:
        """Read everything that it has printed by now, and return the last lines."""
        # The process has ended, but its last lines may still be in the pipes.
        for pipe in self._pipes:
            pipe.drain()
        return self._tail.text()


def _ignore_end() -> None:
    """Do nothing: the end of the process counts, and not the end of its output."""
