"""One rank as its supervisor sees it: a process, a link, two pipes, and how it ended."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

from herringbone_contract.constants import line_prefix
from herringbone_entry.channel.frames import Message, Wire, WireError
from herringbone_entry.ranks.layout import Place
from herringbone_entry.ranks.lines import LineStream, Tail
from herringbone_entry.ranks.output import Output
from herringbone_entry.ranks.pipe import Pipe
from herringbone_entry.supervisor.event_loop import Loop


class RankProcess:
    """Follows one rank from its orders to its end; `on_change` is called whenever something about it changed.

    `report` is what it said when leaving. `code` is its exit code once known, `gone` whether the process has ended,
    `ended_at` (monotonic seconds) the first moment we knew that it ends. `pipes` are those that its process writes to
    already.
    """

    def __init__(
        self,
        place: Place,
        loop: Loop,
        output: Output,
        on_change: Callable[[RankProcess], None],
        pipes: Sequence[tuple[int, int] | None] = (None, None),
    ) -> None:
        self.place = place
        self._loop, self._on_change = loop, on_change
        self.tail = Tail()
        prefix = line_prefix(place.host, place.rank)
        self._pipes = [Pipe(loop, output, LineStream(prefix, self.tail), self._changed, ends) for ends in pipes]
        self._wire: Wire | None = None
        self._orders = memoryview(b"")
        self.pid: int | None = None
        self.report: dict[str, Any] | None = None
        self.code: int | None = None
        self.said_done = False
        self.gone = False
        self.ended_at: float | None = None
        self.told = False
        self._waits = False

    @property
    def writers(self) -> tuple[int, int]:
        """The ends of its output that the rank gets."""
        return self._pipes[0].writer, self._pipes[1].writer

    @property
    def silent(self) -> bool:
        """Whether all it will ever print has been read."""
        return all(pipe.ended for pipe in self._pipes)

    def link(self, connection: socket.socket, pid: int, orders: Message, descriptors: tuple[int, ...] = ()) -> None:
        """Take the rank's link and pid, and give it its orders; `descriptors` are its output, unless it has them."""
        self.pid = pid
        connection.setblocking(False)
        self._wire = Wire(connection)
        with contextlib.suppress(OSError):  # it died; the end of the link will say so
            self._orders = self._wire.begin(orders, descriptors)
        if self._orders:
            # Larger than what the socket takes before the rank reads, which it may never do.
            self._loop.write(connection.fileno(), self._give)
        else:
            self._loop.read(connection.fileno(), self._hear)

    def started(self) -> None:
        """The rank has its own copies of the pipes' ends."""
        for pipe in self._pipes:
            pipe.close_writer()

    def exited(self, code: int) -> None:
        """The process, a child of ours, has been reaped."""
        self.gone = True
        if self.code is None:
            self.code = code
        self._note_end()
        self._changed()

    def let_go(self) -> None:
        """Answer a rank that waits for leave to exit; one that will ask later is answered then."""
        if self._waits and self._wire is not None:
            self._waits = False
            with contextlib.suppress(OSError):
                self._wire.send({})

    def drain(self) -> None:
        """Take what it has printed by now."""
        for pipe in self._pipes:
            pipe.drain()

    def silence(self) -> None:
        """Wait no longer for the end of its output: something that it started holds it open."""
        for pipe in self._pipes:
            pipe.finish()

    def write_off(self) -> None:
        """Take it for ended, though nobody has said so."""
        if self._wire is not None:
            self._hang_up()

    def never_came(self) -> None:
        """The rank was not started, and will not be."""
        self.gone = True
        self.started()

    @property
    def waits(self) -> bool:
        return self._waits

    def _give(self) -> None:
        assert self._wire is not None
        try:
            self._orders = self._wire.go_on(self._orders)
        except BlockingIOError:
            return
        except OSError:
            self._orders = memoryview(b"")
        if not self._orders:
            self._loop.forget(self._wire.fileno())
            self._loop.read(self._wire.fileno(), self._hear)

    def _hear(self) -> None:
        assert self._wire is not None
        try:
            messages = self._wire.receive()
        except (EOFError, WireError):
            self._hang_up()
            return
        for message in messages:
            self._take(message)

    def _take(self, message: Message) -> None:
        if message.get("kind") == "done":
            self.said_done = True
        elif message.get("kind") == "leaving":
            self.report = message
            self.code = int(message["code"])
            self._waits = True
            self._note_end()
        self._changed()

    def _hang_up(self) -> None:
        """The link ended, and with it the rank: only its own process holds the other end."""
        assert self._wire is not None
        self._loop.forget(self._wire.fileno())
        self._wire.close()
        self._wire = None
        self._waits = False
        self._note_end()
        self._changed()

    @property
    def linked(self) -> bool:
        return self._wire is not None

    def _note_end(self) -> None:
        if self.ended_at is None and not (self.said_done and self.code is None):
            self.ended_at = time.monotonic()

    def _changed(self) -> None:
        self._on_change(self)
