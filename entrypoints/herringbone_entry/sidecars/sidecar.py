"""A program beside the ranks that is none itself: mpirun, one of its daemons, or the server of a helper host."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence

from herringbone_entry import processes
from herringbone_entry.ranks.lines import LineStream, Tail
from herringbone_entry.ranks.output import Output
from herringbone_entry.ranks.pipe import Pipe
from herringbone_entry.spawn import spawn
from herringbone_entry.supervisor.event_loop import Loop

# Open MPI complains when its child was quicker to leave its process group; it does no harm.
_NOISE = re.compile(rb"plm:[rs]sh: Warning: setpgid\(.*\) failed in parent with errno=Permission denied")


class _Lines(LineStream):
    """Lines without those that only alarm."""

    def _whole(self, lines: bytes) -> bytes:
        if _NOISE.search(lines):
            lines = b"".join(line for line in lines.splitlines(keepends=True) if not _NOISE.search(line))
        return super()._whole(lines) if lines else b""


class Companion:
    """Starts the program; what it prints comes behind `prefix`, and its last lines are kept.

    Descriptors in `inherit` keep their number in it.
    """

    def __init__(
        self,
        argv: list[str],
        environment: Mapping[str, str],
        loop: Loop,
        output: Output,
        prefix: bytes,
        inherit: Sequence[int] = (),
    ) -> None:
        self._tail = Tail()
        self._pipes = [Pipe(loop, output, _Lines(prefix, self._tail), _nothing) for _ in range(2)]
        stdout, stderr = self._pipes
        self.pid = spawn(argv, environment, stdout=stdout.writer, stderr=stderr.writer, inherit=inherit)
        for pipe in self._pipes:
            pipe.close_writer()

    def signal(self, number: signal.Signals) -> None:
        processes.send(self.pid, number)

    def mute(self) -> None:
        """Show nothing more: what it says of a job that is being ended only follows from that."""
        for pipe in self._pipes:
            pipe.mute()

    def last_words(self) -> tuple[str, ...]:
        """Take what it has printed by now, and return the last lines."""
        for pipe in self._pipes:
            pipe.drain()
        return self._tail.text()


def _nothing() -> None:
    """Nobody waits for the end of its output: the end of the process is what counts."""
