"""One rank, as its supervisor follows it: a process, a link, two pipes, and how it ended."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

from herringbone_contract.constants import line_prefix
from herringbone_contract.failure import CRASH_CODES
from herringbone_contract.layout import RankPlacement
from herringbone_entry import processes
from herringbone_entry.channel.frames import Message, Wire, WireError
from herringbone_entry.event_loop import Loop
from herringbone_entry.ranks.lines import LineStream, Tail
from herringbone_entry.ranks.output import Output
from herringbone_entry.ranks.pipe import Pipe


class RankProcess:
    """Follows one rank from its start message to its end; `on_change` is called whenever something changed.

    `report` is the rank's own report when leaving. `code` is its exit code once known, `gone` whether the process has
    ended, `ended_at` (monotonic seconds) the first moment at which we knew that it ends. `pipes` are given when the
    process writes to some already.
    """

    def __init__(
        self,
        placement: RankPlacement,
        loop: Loop,
        output: Output,
        on_change: Callable[[RankProcess], None],
        pipes: Sequence[tuple[int, int] | None] = (None, None),
    ) -> None:
        self.placement = placement
        self._loop, self._on_change = loop, on_change
        self.tail = Tail()
        self._output, self._prefix = output, line_prefix(placement.host, placement.rank)
        self._pipes = [Pipe(loop, output, LineStream(self._prefix, self.tail), self._changed, ends) for ends in pipes]
        # None before the rank has attached, and after its link has ended.
        self._wire: Wire | None = None
        # The end of a pipe whose other end the rank has; it is open as long as the supervisor lives.
        self._lifeline: int | None = None
        # The part of the start message that the socket has not taken yet.
        self._unsent = memoryview(b"")
        self.pid: int | None = None
        self.report: dict[str, Any] | None = None
        self.code: int | None = None
        self.reported_done = False
        self.reported_over = False
        # For a rank that is not our child: what the system shows of its end, and whether its parent was faster.
        self.seen_code: int | None = None
        self.reaped = False
        self.gone = False
        self.ended_at: float | None = None
        # The owner sets it once the coordinator knows of the end.
        self.end_reported = False
        # True between the rank's report and our answer, during which it cannot exit.
        self._waits = False

    @property
    def writers(self) -> tuple[int, int]:
        """The writing ends of the pipes, for the rank's standard output and error."""
        return self._pipes[0].writer, self._pipes[1].writer

    @property
    def moved_at(self) -> float:
        """The last time at which it printed or ended, in monotonic seconds; 0.0 before it."""
        return max(self._pipes[0].read_at, self._pipes[1].read_at, self.ended_at or 0.0)

    @property
    def silent(self) -> bool:
        """True if everything that it will ever print has been read."""
        return all(pipe.ended for pipe in self._pipes)

    @property
    def waits(self) -> bool:
        """True if the rank has reported its end and waits for leave to exit."""
        return self._waits

    @property
    def linked(self) -> bool:
        """True if the connection to the rank is open."""
        return self._wire is not None

    def link(self, connection: socket.socket, pid: int, message: Message, descriptors: tuple[int, ...] = ()) -> None:
        """Take the rank's connection and pid, and send it its start message.

        `descriptors` are its standard output and error, unless its process has them. The lifeline goes with them.
        """
        self.pid = pid
        connection.setblocking(False)
        self._wire = Wire(connection)
        reader, self._lifeline = os.pipe()
        with contextlib.suppress(OSError):  # the rank died; the end of its link will tell us
            self._unsent = self._wire.begin(message, (*descriptors, reader))
        os.close(reader)
        if self._unsent:
            # The message is larger than the socket's buffer, and the rank may never read it: a blocking send would
            # stop the loop.
            self._loop.write(connection.fileno(), self._send_rest)
        else:
            self._loop.read(connection.fileno(), self._receive)

    def started(self) -> None:
        """Close our copies of the writing ends: the rank has its own, and the end of a pipe comes with the last one."""
        for pipe in self._pipes:
            pipe.close_writer()

    def exited(self, code: int) -> None:
        """Note that the process, a child of ours, has been reaped."""
        self.gone = True
        # A rank that is killed while it waits for leave keeps the code that it reported.
        if self.code is None:
            self.code = 0 if self.reported_over and self._crashed_at_end(code) else code
        self._note_end()
        self._changed()

    def let_go(self) -> None:
        """Answer a rank that waits for leave to exit; a rank that asks later is answered then."""
        if self._waits and self._wire is not None:
            self._waits = False
            with contextlib.suppress(OSError):
                self._wire.send({})

    def drain(self) -> None:
        """Read everything that it has printed by now."""
        for pipe in self._pipes:
            pipe.drain()

    def stop_reading(self) -> None:
        """Wait no longer for the end of its output: a process that it started holds the output open."""
        for pipe in self._pipes:
            pipe.finish()

    def write_off(self) -> None:
        """Count it as ended although nothing has reported that; `Ending` waits for its process."""
        self.gone = True
        if self._wire is not None:
            self._close_link()
        else:
            self._changed()

    def never_came(self) -> None:
        """Note that the rank was not started, and will not be."""
        self.gone = True
        self.started()

    def _send_rest(self) -> None:
        assert self._wire is not None
        try:
            self._unsent = self._wire.send_rest(self._unsent)
        except BlockingIOError:
            return
        except OSError:
            self._unsent = memoryview(b"")
        if not self._unsent:
            # The loop keeps one registration per descriptor, so writing ends before reading begins.
            self._loop.forget(self._wire.fileno())
            self._loop.read(self._wire.fileno(), self._receive)

    def _receive(self) -> None:
        assert self._wire is not None
        try:
            messages = self._wire.receive()
        except (EOFError, WireError):
            # A message that cannot be read is treated like the end: the rank is useless to us either way.
            self._close_link()
            return
        for message in messages:
            self._take(message)

    def _take(self, message: Message) -> None:
        if message.get("kind") == "done":
            self.reported_done = True
        elif message.get("kind") == "over":
            self.reported_over = True
        elif message.get("kind") == "preimported" and message["why"]:
            self._say(f"not all of the script's imports were made ahead: {message['why']}")
        elif message.get("kind") == "leaving":
            self.report = message
            self.code = int(message["code"])
            self._waits = True
            self._note_end()
        self._changed()

    def _crashed_at_end(self, code: int) -> bool:
        """Report, and say in the log, that a crash has ended the rank when nothing but Python's teardown remained."""
        if code not in CRASH_CODES:
            return False
        name = signal.Signals(code - 128).name
        text = f"Python was ended by {name} in its teardown: script and exit functions were over"
        self._say(text)
        return True

    def _say(self, text: str) -> None:
        self._output.write(self._prefix + f"herringbone: {text}\n".encode())

    def _close_link(self) -> None:
        """Take the end of the link for the end of the rank: only the rank's own process holds the other end."""
        assert self._wire is not None
        self._loop.forget(self._wire.fileno())
        self._wire.close()
        self._wire = None
        self._waits = False
        self._note_end()
        self._look_at_end()
        self._changed()

    def _look_at_end(self) -> None:
        """Learn how a rank ends, before its parent collects its exit code: that may be mpirun."""
        if self.code is None and self.reported_over == self.reported_done and self.pid is not None:
            try:
                self.seen_code = processes.exit_code_before_reaping(self.pid)
            except ProcessLookupError:
                self.reaped = True
            if self.reported_over and self.seen_code is not None and self._crashed_at_end(self.seen_code):
                self.code = 0

    def _note_end(self) -> None:
        # A rank that reported "done" closes its link before it exits. Its code, if it is not 0, comes with its exit,
        # so only that moment counts.
        if self.ended_at is None and not (self.reported_done and self.code is None):
            self.ended_at = time.monotonic()

    def _changed(self) -> None:
        self._on_change(self)
