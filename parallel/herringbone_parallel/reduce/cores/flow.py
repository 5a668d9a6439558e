"""How chunks flow through one process: what it sends, sums and hands on, as soon as what that waits for is there.

    [1] contribute   own chunks of the other local ranks' lanes -> their slots in shared memory
    [2] join         own lane: the ranks of this host have given a chunk -> their sum, in the buffer
    [3] push         a chunk of the own lane -> the server of its shard
    [4] serve        all hosts have given a chunk of the shard that this process sums -> the sum, to all of them
    [5] hand on      the sum over all hosts is in the buffer -> the slots of the ranks of this host

A helper has [4] alone. None of the steps blocks: each does what it can.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from herringbone_contract.errors import ParallelError
from herringbone_parallel.reduce.cores.base import CoreConfig, Role
from herringbone_parallel.reduce.cores.buffers import Buffer, Buffers, Cursor, memory, values
from herringbone_parallel.reduce.cores.cut import Chunk
from herringbone_parallel.reduce.cores.messages import Header, Kind
from herringbone_parallel.reduce.cores.ring import Place
from herringbone_parallel.reduce.cores.stream import Stream
from herringbone_parallel.reduce.cores.summing import Slots
from herringbone_parallel.reduce.elements import Element, narrow, total, widen


class Flow:
    """The state of one process's part; `done` is called with the number of each buffer whose sum is in place."""

    def __init__(
        self, config: CoreConfig, buffers: Buffers, streams: Sequence[Stream], done: Callable[[int], None]
    ) -> None:
        self._config, self._buffers, self._done = config, buffers, done
        self._own = config.helpers + config.member  # this rank's number as a server
        self._streams = {
            (stream.spec.index if stream.spec.role is Role.HELPER else config.helpers + stream.spec.index): stream
            for stream in streams
            if stream.spec.role is not Role.LOCAL
        }
        self._locals = {stream.spec.index: stream for stream in streams if stream.spec.role is Role.LOCAL}
        self._carries = config.member < 0 or config.local < config.lanes
        self._network = config.members > 1 and self._carries
        self._make_slots()
        self._make_cursors()

    def _make_slots(self) -> None:
        config = self._config
        labels = [config.label] * config.members
        memories: list[memoryview | None] = [None] * config.members
        for stream in self._streams.values():
            if stream.spec.role is Role.PEER:
                labels[stream.spec.index] = stream.spec.label
                memories[stream.spec.index] = memoryview(bytearray(config.limit.ring))
        # Without connections to the other hosts' ranks, helpers sum everything.
        serves = any(given is not None for given in memories)
        self.served = Slots(memories, labels, config.limit) if serves else None
        self._results = memoryview(bytearray(config.limit.ring if serves else 0))
        self._staged = {server: memoryview(bytearray(config.limit.ring)) for server in self._streams}
        self._landed = {server: memoryview(bytearray(config.chunk_bytes)) for server in self._streams}
        labels, memories = [config.label] * config.locals, [None] * config.locals
        for index, stream in self._locals.items():
            labels[index] = stream.spec.label
            if stream.spec.inbox:
                memories[index] = memory(stream.spec.inbox, config.local_limit.ring)
        self.joined = Slots(memories, labels, config.local_limit) if self._locals and self._carries else None

    def _make_cursors(self) -> None:
        config, buffers = self._config, self._buffers
        rank = config.member >= 0
        lane = config.local if rank and self._carries else None
        self._giving = {
            index: (Cursor(buffers, index), Cursor(buffers, index)) for index in self._locals if index < config.lanes
        }
        self._pushing, self._serving, self._joining, self._handing = {}, None, None, None
        if lane is not None:
            self._joining, self._handing = Cursor(buffers, lane), Cursor(buffers, lane)
            self._serving = Cursor(buffers, lane, self._own)
            self._pushing = {
                server: (Cursor(buffers, lane, server), Cursor(buffers, lane, server)) for server in self._streams
            }
        self._rank = rank
        self._handed = Place(config.local_limit)

    def run(self) -> None:
        """Do all that can be done now."""
        for index in self._giving:
            self._contribute(index)
        self._join()
        for server in self._pushing:
            self._push(server)
        self._serve()
        self._hand_on()

    def waiting(self) -> tuple[tuple[Slots | None, bool], ...]:
        """The sums that this process takes, each with whether its own part of the next chunk is there."""
        return (
            (self.served, self._serving is not None and self._serving.peek() is not None),
            (self.joined, self._joining is not None and self._joining.peek() is not None),
        )

    def place(self, stream: Stream, header: Header) -> memoryview:
        """Return where the elements behind a header go."""
        if stream.spec.role is Role.LOCAL or not header.length:
            return memoryview(b"")
        if header.length > self._config.chunk_bytes:
            raise ParallelError(
                f"{stream.spec.label} sent {header.length} bytes at once: the connection is out of step"
            )
        if header.kind == Kind.PUSH:
            if self.served is None or stream.spec.role is Role.HELPER:
                raise ParallelError(f"{stream.spec.label} pushed what was not due: the connection is out of step")
            return self.served.slot(stream.spec.index, header.length)
        buffer, chunk = self._expected(stream, header)
        if header.wire == header.element:
            return buffer.view(chunk)
        return self._landed[self._number(stream)]

    def take(self, stream: Stream, header: Header, body: memoryview) -> None:
        """A chunk is there."""
        local = stream.spec.role is Role.LOCAL
        if header.kind == Kind.PUSH:
            slots = self.joined if local else self.served
            if slots is None or stream.spec.role is Role.HELPER or bool(header.length) == local:
                raise ParallelError(f"{stream.spec.label} pushed what was not due: the connection is out of step")
            size = header.elements * Element(header.element).size if local else header.length
            slots.arrive(stream.spec.index, size, header)
            return
        buffer, chunk = self._expected(stream, header)
        if local:
            data = buffer.view(chunk)
            data[:] = self._outbox(stream, stream.returned.next(len(data)), len(data))
            self._one_less(buffer)
        else:
            stream.returned.next(header.length)
            if header.wire != header.element:
                buffer.values(chunk)[:] = widen(values(body, Element(header.wire)), Element(header.wire))
            self._is_final(buffer, chunk)
        self._returning(stream).advance()

    def _number(self, stream: Stream) -> int:
        helper = stream.spec.role is Role.HELPER
        return stream.spec.index if helper else self._config.helpers + stream.spec.index

    def _returning(self, stream: Stream) -> Cursor:
        if stream.spec.role is Role.LOCAL:
            return self._giving[stream.spec.index][1]
        return self._pushing[self._number(stream)][1]

    def _expected(self, stream: Stream, header: Header) -> tuple[Buffer, Chunk]:
        due = self._returning(stream).peek() if stream.returned.number < stream.pushed.number else None
        if due is None or not due[0].header(due[1], 0).same_chunk(header):
            raise ParallelError(f"{stream.spec.label} sent the sum of {header.describe()}, which was not due")
        return due[0], due[1]

    def _outbox(self, stream: Stream, start: int, size: int) -> memoryview:
        return memory(stream.spec.outbox + start, size)

    def _contribute(self, index: int) -> None:
        stream, cursor = self._locals[index], self._giving[index][0]
        while due := cursor.peek():
            data = due[0].view(due[1])
            if not stream.pushed.is_free(stream.returned, len(data)):
                return
            self._outbox(stream, stream.pushed.next(len(data)), len(data))[:] = data
            stream.send(due[0].header(due[1], 0))
            cursor.advance()

    def _join(self) -> None:
        if self._joining is None:
            return
        alone = not self._network
        while (due := self._joining.peek()) and (self.joined is None or self.joined.complete()):
            buffer, chunk = due
            how = buffer.submission
            if self.joined is not None:
                self.joined.check(buffer.header(chunk, 0))
                size = chunk.count * how.element.size
                start = self.joined.advance(size)
                given = [
                    (values(self.joined.at(member, start, size), how.element), how.element)
                    if member != self._config.local
                    else (buffer.values(chunk), how.element)
                    for member in range(self._config.locals)
                ]
                buffer.values(chunk)[:] = narrow(total(given, how.divisor if alone else 1), how.element)
            buffer.ready[chunk.shard] += 1
            self._joining.advance()
            if alone:
                self._is_final(buffer, chunk)

    def _push(self, server: int) -> None:
        stream, cursor = self._streams[server], self._pushing[server][0]
        while due := cursor.peek():
            buffer, chunk = due
            how, data = buffer.submission, buffer.view(chunk)
            size = chunk.count * how.wire.size
            if chunk.number >= buffer.ready[chunk.shard] or not stream.pushed.is_free(stream.returned, size):
                return
            # As many chunks for each server, not as many bytes: small shards have small ones, and all end together.
            largest = how.chunk * how.wire.size
            if stream.pushed.number - stream.returned.number >= max(1, how.window // largest):
                return
            start = stream.pushed.next(size)
            if how.wire is not how.element:
                data = self._staged[server][start : start + size]
                values(data, how.wire)[:] = narrow(widen(buffer.values(chunk), how.element), how.wire)
            stream.send(buffer.header(chunk, len(data)), data)
            cursor.advance()

    def _serve(self) -> None:
        slots = self.served
        while slots is not None and slots.complete():
            due = self._serving.peek() if self._serving is not None else None
            if self._rank and (due is None or due[1].number >= due[0].ready[due[1].shard]):
                return
            header = slots.check(due[0].header(due[1], 0) if due else None)
            wire = Element(header.wire)
            size = header.elements * wire.size
            start = slots.advance(size)
            given = [
                (due[0].values(due[1]), due[0].submission.element)
                if due and member == self._config.member
                else (values(slots.at(member, start, size), wire), wire)
                for member in range(self._config.members)
            ]
            # A sum is not overwritten before all have it: they would not have pushed what takes its place.
            result = self._results[start : start + size]
            values(result, wire)[:] = narrow(total(given, header.divisor), wire)
            for stream in self._streams.values():
                if stream.spec.role is Role.PEER:
                    stream.send(header._replace(kind=Kind.SUM, length=size), result)
            if due:
                # What all have is what went over the wire: the same bits everywhere.
                sums = values(result, wire)
                due[0].values(due[1])[:] = sums if header.wire == header.element else widen(sums, wire)
                assert self._serving is not None
                self._serving.advance()
                self._is_final(*due)

    def _hand_on(self) -> None:
        if self._handing is None or not self._locals:
            return
        while due := self._handing.peek():
            buffer, chunk = due
            if chunk.number >= buffer.final[chunk.shard]:
                return
            data = buffer.view(chunk)
            start = self._handed.next(len(data))
            for stream in self._locals.values():
                assert self.joined is not None
                self.joined.at(stream.spec.index, start, len(data))[:] = data
                stream.send(buffer.header(chunk, 0)._replace(kind=Kind.SUM))
            self._handing.advance()
            self._one_less(buffer)

    def _is_final(self, buffer: Buffer, chunk: Chunk) -> None:
        buffer.final[chunk.shard] += 1
        self._one_less(buffer)

    def _one_less(self, buffer: Buffer) -> None:
        buffer.remaining -= 1
        if not buffer.remaining:
            self._done(buffer.sequence)
