"""The flow of chunks through one process: send, sum and hand on each chunk as soon as its inputs are there.

    [1] contribute   chunks of the other local ranks' lanes -> their slots in shared memory
    [2] join         own lane: all ranks of this host have contributed a chunk -> their sum, in the buffer
    [3] push         a chunk of the own lane -> the server of its shard
    [4] serve        all hosts have contributed a chunk of the shard that this process sums -> the sum, to all of them
    [5] hand on      the sum over all hosts is in the buffer -> the slots of the ranks of this host

A helper has step [4] only. No step blocks: each does as much as it can. `native/flow.c` takes the same steps in the
same order, so both cores produce the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from herringbone_contract.errors import ParallelError
from herringbone_parallel.reduce.cores.base import CoreConfig, Role
from herringbone_parallel.reduce.cores.buffers import Buffer, Buffers, Cursor, memory, values
from herringbone_parallel.reduce.cores.cut import Chunk
from herringbone_parallel.reduce.cores.messages import Header, Kind
from herringbone_parallel.reduce.cores.ring import RingCursor
from herringbone_parallel.reduce.cores.stream import Stream
from herringbone_parallel.reduce.cores.summing import Slots
from herringbone_parallel.reduce.elements import Element, narrow, total, widen


class Flow:
    """The state of one process's part, which only the I/O thread uses.

    `done` is called with the number of each buffer whose sum is in place.
    """

    def __init__(
        self, config: CoreConfig, buffers: Buffers, streams: Sequence[Stream], done: Callable[[int], None]
    ) -> None:
        self._config, self._buffers, self._done = config, buffers, done
        # Servers are numbered: first the helpers, then the hosts' ranks of this lane.
        self._own_number = config.helpers + config.member
        self._streams = {
            (stream.spec.index if stream.spec.role is Role.HELPER else config.helpers + stream.spec.index): stream
            for stream in streams
            if stream.spec.role is not Role.LOCAL
        }
        self._locals = {stream.spec.index: stream for stream in streams if stream.spec.role is Role.LOCAL}
        self._carries = config.member < 0 or config.local < config.lanes
        # Without a network step, the sum over this host is the final one.
        self._network = config.members > 1 and self._carries
        self._make_slots()
        self._make_cursors()

    def _make_slots(self) -> None:
        """Allocate the memory for other processes' chunks. Its size follows from the limits, not from the buffers."""
        config = self._config
        # One entry per host. This host's own entry has no ring, because its chunks are read from the buffer.
        labels = [config.label] * config.members
        memories: list[memoryview | None] = [None] * config.members
        for stream in self._streams.values():
            if stream.spec.role is Role.PEER:
                labels[stream.spec.index] = stream.spec.label
                memories[stream.spec.index] = memoryview(bytearray(config.limit.ring))
        # Without connections to the other hosts' ranks, helpers sum everything.
        serves = any(memory is not None for memory in memories)
        self.served = Slots(memories, labels, config.limit) if serves else None
        self._results = memoryview(bytearray(config.limit.ring if serves else 0))
        # Chunks that are converted to the wire's format before they are sent, and after they are received.
        self._staged = {server: memoryview(bytearray(config.limit.ring)) for server in self._streams}
        self._landed = {server: memoryview(bytearray(config.chunk_bytes)) for server in self._streams}
        labels, memories = [config.label] * config.locals, [None] * config.locals
        for index, stream in self._locals.items():
            labels[index] = stream.spec.label
            if stream.spec.inbox:
                memories[index] = memory(stream.spec.inbox, config.local_limit.ring)
        self.joined = Slots(memories, labels, config.local_limit) if self._locals and self._carries else None

    def _make_cursors(self) -> None:
        """Make the cursors of the steps. A pair holds the next chunk to send, and the next one whose sum returns."""
        config, buffers = self._config, self._buffers
        is_rank = config.member >= 0
        lane = config.local if is_rank and self._carries else None
        self._contributing = {
            index: (Cursor(buffers, index), Cursor(buffers, index)) for index in self._locals if index < config.lanes
        }
        self._pushing, self._serving, self._joining, self._handing = {}, None, None, None
        if lane is not None:
            self._joining, self._handing = Cursor(buffers, lane), Cursor(buffers, lane)
            self._serving = Cursor(buffers, lane, self._own_number)
            self._pushing = {
                server: (Cursor(buffers, lane, server), Cursor(buffers, lane, server)) for server in self._streams
            }
        self._is_rank = is_rank
        self._handed = RingCursor(config.local_limit)

    def run(self) -> None:
        """Take all steps as far as they can go now."""
        # In the order of the data, so that a chunk can pass several steps in one turn.
        for index in self._contributing:
            self._contribute(index)
        self._join()
        for server in self._pushing:
            self._push(server)
        self._serve()
        self._hand_on()

    def waiting(self) -> tuple[tuple[Slots | None, bool], ...]:
        """Return the slots of each sum of this process; True if its own part of the next chunk is there."""
        return (
            (self.served, self._serving is not None and self._serving.peek() is not None),
            (self.joined, self._joining is not None and self._joining.peek() is not None),
        )

    def destination(self, stream: Stream, header: Header) -> memoryview:
        """Return the memory for the elements behind a header. Raises `ParallelError` for an unexpected message."""
        if not header.length:
            return memoryview(b"")
        # The stream has checked that the sizes in the header fit each other; here they must fit this process's memory.
        if header.length > self._config.chunk_bytes:
            raise ParallelError(
                f"{stream.spec.label} sent {header.length} bytes at once: the connection is out of step"
            )
        if header.kind == Kind.PUSH:
            if self.served is None or stream.spec.role is Role.HELPER:
                raise ParallelError(f"{stream.spec.label} pushed what was not due: the connection is out of step")
            return self.served.slot(stream.spec.index, header.length)
        buffer, chunk = self._expected(stream, header)
        if header.sum_element == header.element:
            # The sum goes straight into the user's buffer.
            return buffer.view(chunk)
        return self._landed[self._number(stream)]

    def deliver(self, stream: Stream, header: Header, body: memoryview) -> None:
        """Handle a chunk that has arrived."""
        is_local = stream.spec.role is Role.LOCAL
        if header.kind == Kind.PUSH:
            slots = self.joined if is_local else self.served
            if slots is None or stream.spec.role is Role.HELPER:
                raise ParallelError(f"{stream.spec.label} pushed what was not due: the connection is out of step")
            # A local message has no length; the size of its chunk follows from the number of elements.
            size = header.elements * Element(header.element).size if is_local else header.length
            slots.arrive(stream.spec.index, size, header)
            return
        buffer, chunk = self._expected(stream, header)
        # Advancing `returned` is the credit: it frees the chunk's place for another push.
        if is_local:
            data = buffer.view(chunk)
            data[:] = self._outbox(stream, stream.returned.next(len(data)), len(data))
            self._count_down(buffer)
        else:
            # The sum frees the place of the chunk that was pushed, which may have been larger.
            stream.returned.next(chunk.count * buffer.submission.wire.size)
            if header.sum_element != header.element:
                buffer.values(chunk)[:] = widen(values(body, header.sum_element), header.sum_element)
            self._make_final(buffer, chunk)
        self._returning(stream).advance()

    def _number(self, stream: Stream) -> int:
        is_helper = stream.spec.role is Role.HELPER
        return stream.spec.index if is_helper else self._config.helpers + stream.spec.index

    def _returning(self, stream: Stream) -> Cursor:
        if stream.spec.role is Role.LOCAL:
            return self._contributing[stream.spec.index][1]
        return self._pushing[self._number(stream)][1]

    def _expected(self, stream: Stream, header: Header) -> tuple[Buffer, Chunk]:
        """Return the chunk whose sum is due next; sums return in the order of pushes."""
        # The sum of a chunk that was never pushed would otherwise overwrite elements of the user's buffer.
        due = self._returning(stream).peek() if stream.returned.number < stream.pushed.number else None
        if due is None or not due[0].header(due[1], 0).same_chunk(header):
            raise ParallelError(f"{stream.spec.label} sent the sum of {header.describe()}, which was not due")
        return due[0], due[1]

    def _outbox(self, stream: Stream, start: int, size: int) -> memoryview:
        return memory(stream.spec.outbox + start, size)

    def _contribute(self, index: int) -> None:
        """[1] Copy chunks of another local rank's lane to its shared memory, as far as its ring has room."""
        stream, cursor = self._locals[index], self._contributing[index][0]
        while due := cursor.peek():
            data = due[0].view(due[1])
            if not stream.pushed.is_free(stream.returned, len(data)):
                return
            # Copy before the message is queued: the other rank reads as soon as it has the message.
            self._outbox(stream, stream.pushed.next(len(data)), len(data))[:] = data
            stream.send(due[0].header(due[1], 0))
            cursor.advance()

    def _join(self) -> None:
        """[2] Sum the chunks of this host's ranks into the buffer, in the order of local ranks."""
        if self._joining is None:
            return
        is_final = not self._network
        # A lone rank of its host has nothing to join: its chunks are ready at once.
        while (due := self._joining.peek()) and (self.joined is None or self.joined.complete()):
            buffer, chunk = due
            submission = buffer.submission
            parts = [(buffer.values(chunk), submission.element)]
            if self.joined is not None:
                self.joined.check(buffer.header(chunk, 0))
                size = chunk.count * submission.element.size
                start = self.joined.advance(size)
                parts = [
                    (values(self.joined.at(member, start, size), submission.element), submission.element)
                    if member != self._config.local
                    else parts[0]
                    for member in range(self._config.locals)
                ]
            # The last sum divides. A sum that goes on over the network in 16 bits is divided before, or it might
            # overflow.
            divisor = submission.divisor if is_final else submission.host_divisor
            host_sum, element = buffer.host_sum(chunk)
            if len(parts) > 1 or divisor != 1 or element is not submission.element:
                host_sum[:] = narrow(total(parts, divisor), element)
            buffer.ready[chunk.shard] += 1
            self._joining.advance()
            if is_final:
                self._make_final(buffer, chunk)

    def _push(self, server: int) -> None:
        """[3] Push chunks whose sum over this host is ready, as far as the window allows."""
        stream, cursor = self._streams[server], self._pushing[server][0]
        while due := cursor.peek():
            buffer, chunk = due
            submission = buffer.submission
            size = chunk.count * submission.wire.size
            if chunk.number >= buffer.ready[chunk.shard] or not stream.pushed.is_free(stream.returned, size):
                return
            # The window counts chunks rather than bytes: all servers then have equally many chunks in flight, and small
            # shards, with small chunks, end at the same time as large ones.
            largest = submission.chunk * submission.wire.size
            if stream.pushed.number - stream.returned.number >= max(1, submission.window // largest):
                return
            start = stream.pushed.next(size)
            host_sum, element = buffer.host_sum(chunk)
            data = host_sum.data.cast("B")
            if submission.wire is not element:
                # Staged memory is a ring like the server's, so a chunk stays unchanged until its sum has returned.
                data = self._staged[server][start : start + size]
                values(data, submission.wire)[:] = narrow(widen(host_sum, element), submission.wire)
            stream.send(buffer.header(chunk, size), data)
            cursor.advance()

    def _serve(self) -> None:
        """[4] Sum the chunks of all hosts, in the order of hosts, and send the sum to all of them."""
        slots = self.served
        while slots is not None and slots.complete():
            due = self._serving.peek() if self._serving is not None else None
            # A rank that serves contributes, too: its own part must be ready.
            if self._is_rank and (due is None or due[1].number >= due[0].ready[due[1].shard]):
                return
            # A helper has no buffer of its own; it takes the header from the members' messages.
            header = slots.check(due[0].header(due[1], 0) if due else None)
            wire = Element(header.wire)
            size = header.elements * wire.size
            start = slots.advance(size)
            parts = [
                due[0].host_sum(due[1])
                if due and member == self._config.member
                else (values(slots.at(member, start, size), wire), wire)
                for member in range(self._config.members)
            ]
            # The result may overwrite an older sum in the ring: members pushed chunks for that place, so they have
            # received the older sum.
            element = header.sum_element
            result = self._results[start : start + header.elements * element.size]
            values(result, element)[:] = narrow(total(parts, header.divisor), element)
            for stream in self._streams.values():
                if stream.spec.role is Role.PEER:
                    stream.send(header._replace(kind=Kind.SUM, length=len(result)), result)
            if due:
                # The server itself takes the rounded result that it has sent, so that all ranks have the same bits.
                sums = values(result, element)
                due[0].values(due[1])[:] = sums if element == header.element else widen(sums, element)
                assert self._serving is not None
                self._serving.advance()
                self._make_final(*due)

    def _hand_on(self) -> None:
        """[5] Copy final chunks of the own lane to the shared memory of this host's ranks."""
        if self._handing is None or not self._locals:
            return
        while due := self._handing.peek():
            buffer, chunk = due
            if chunk.number >= buffer.final[chunk.shard]:
                return
            data = buffer.view(chunk)
            # The sum overwrites the contribution: each contributor reads the sum where it wrote its own chunk.
            start = self._handed.next(len(data))
            for stream in self._locals.values():
                assert self.joined is not None
                self.joined.at(stream.spec.index, start, len(data))[:] = data
                stream.send(buffer.header(chunk, 0)._replace(kind=Kind.SUM))
            self._handing.advance()
            self._count_down(buffer)

    def _make_final(self, buffer: Buffer, chunk: Chunk) -> None:
        buffer.final[chunk.shard] += 1
        self._count_down(buffer)

    def _count_down(self, buffer: Buffer) -> None:
        # The last count comes after the last use of the buffer, because its owner may free the memory at once.
        buffer.remaining -= 1
        if not buffer.remaining:
            self._done(buffer.sequence)
