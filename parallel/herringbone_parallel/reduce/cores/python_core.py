"""The core in Python: the same messages, the same order of sums and the same bits as the native core, but slower.

`flow` decides what to do with chunks. This module runs the I/O thread: it reads, writes, watches for silent processes,
and ends in good order.

Threads: callers run `submit`, `wait` and `close`; the I/O thread runs everything else. `_changed` guards the members
that both use: `_submitted`, `_numbered`, `_closing`, `_ended` and the done state of `_buffers`.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import threading
import time
from collections.abc import Callable

from herringbone_contract.errors import ParallelError
from herringbone_parallel.reduce.cores.base import CoreConfig, LinkCount, Role, Submission
from herringbone_parallel.reduce.cores.buffers import Buffers
from herringbone_parallel.reduce.cores.flow import Flow
from herringbone_parallel.reduce.cores.messages import MAX_REASON_BYTES, Header, Kind
from herringbone_parallel.reduce.cores.stream import Stream

# The longest sleep of the I/O thread, and so the precision of its deadlines.
_TICK = 0.25
# Several signs of life fit into the 3.5 s after which a silent process counts as lost.
_ALIVE_EVERY = 0.5
# The limit for the remaining sums at `close`, and again for the others' answers to LEAVE.
_LINGER = 2.0
_ABORT_SECONDS = 1.0


class PythonCore:
    """One I/O thread; `base.Core` documents the methods."""

    def __init__(self, config: CoreConfig) -> None:
        self._config = config
        self._buffers = Buffers()
        self._changed = threading.Condition()
        self._submitted: list[Submission] = []
        self._numbered = 0
        # Written once, by the I/O thread. Callers read it without the lock: reading a reference is atomic.
        self._failure: str | None = None
        self._closing = False
        self._ended = False
        self._pipes: list[int] = []
        self._streams = [
            Stream(
                spec, config.local_limit if spec.role is Role.LOCAL else config.limit, self._destination, self._deliver
            )
            for spec in config.links
        ]
        # `_streams` shrinks as processes leave; `_all_streams` keeps them for the counts and for `_check_left`.
        self._all_streams = tuple(self._streams)
        self._closed_at = 0.0
        self._leaving: float | None = None
        self._ticked = time.monotonic()
        try:
            self._open()
        except BaseException:
            # The links belong to this core, also if the system has no descriptor, memory or thread left.
            for stream in self._streams:
                stream.close()
            self._close_pipes()
            raise

    def _open(self) -> None:
        """Take what the I/O thread needs from the system, and start it."""
        self._flow = Flow(self._config, self._buffers, self._streams, self._finish)
        # Two pipes: callers wake the I/O thread with the first, and it wakes readers of `completions` with the second.
        for _ in range(2):
            self._pipes += os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wake_out, self._wake_in, self._done_out, self._done_in = self._pipes
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_out, selectors.EVENT_READ)
        for stream in self._streams:
            self._selector.register(stream.socket, selectors.EVENT_READ, stream)
        # Last: the thread uses all of the members above.
        self._thread = threading.Thread(target=self._run, name="herringbone-reduce", daemon=True)
        self._thread.start()

    def submit(self, submission: Submission) -> int:
        """Take over a buffer and return its number."""
        with self._changed:
            if self._failure is not None or self._closing:
                raise ParallelError(self._failure or "the engine is closed")
            self._submitted.append(submission)
            self._numbered += 1
            # Numbered under the lock, so that numbers have the order of the list, which the I/O thread keeps.
            number = self._numbered - 1
        self._wake()
        return number

    def wait(self, sequence: int, timeout: float | None) -> bool:
        """Wait until the buffer's sum is in place; return True if it is."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._buffers.is_done(sequence), timeout)
            return self._buffers.is_done(sequence)

    def done(self, sequence: int) -> bool:
        """Return True if the sum is in place."""
        return self._buffers.is_done(sequence)

    def failure(self) -> str | None:
        """Return the reason for which this core stopped, or None."""
        return self._failure

    def counts(self) -> list[LinkCount]:
        """Return the traffic of each connection."""
        return [stream.count() for stream in self._all_streams]

    def completions(self) -> int:
        """Return a descriptor that becomes readable when a buffer is done or the core stops."""
        return self._done_out

    def ended(self) -> bool:
        """Return True if the I/O thread has ended."""
        return self._ended

    def close(self) -> None:
        """Leave in good order, and wait for the I/O thread."""
        with self._changed:
            first, self._closing = not self._closing, True
        if first:
            self._wake()
            self._thread.join()

    def __del__(self) -> None:
        # Not in `close`: another thread may still wait for the completions of a closed core.
        with contextlib.suppress(AttributeError):
            self._close_pipes()

    def _close_pipes(self) -> None:
        pipes, self._pipes = self._pipes, []
        for descriptor in pipes:
            os.close(descriptor)

    # All methods below run in the I/O thread.

    def _run(self) -> None:
        try:
            while not self._has_left():
                self._turn()
        except (ParallelError, OSError) as error:
            self._stop(str(error))
        except BaseException as error:
            # A bug in this core: report it to the other processes, too, so that they do not wait for this one.
            self._stop(f"{self._config.label} stopped by a mistake of our own: {error!r}")
            raise
        finally:
            # Wake all waiting callers first: lingering takes up to a second.
            with self._changed:
                self._ended = True
                self._changed.notify_all()
            self._notify_completions()
            if self._failure is not None:
                self._linger()
            for stream in self._streams:
                stream.close()
            self._selector.close()

    def _turn(self) -> None:
        """Handle one round of events: receive, take all steps of the flow, send."""
        events = self._selector.select(_TICK)
        now = time.monotonic()
        if now - self._ticked > 4 * _TICK:
            # This process itself was stopped: the others' messages of that time are still unread, so nobody is silent.
            for stream in self._streams:
                stream.received_s = now
        for key, _ in events:
            if key.data is None:
                self._take_submitted()
            else:
                self._guard(key.data, key.data.receive)
        self._flow.run()
        # A copy of the list, because `_flush` may remove a stream. All messages of a turn go out together.
        for stream in tuple(self._streams):
            self._flush(stream)
        # Signs of life must go out on time also when events keep this loop busy.
        if now - self._ticked >= _TICK or not events:
            self._ticked = now
            self._tick(now)

    def _guard(self, stream: Stream, work: Callable[[], None]) -> None:
        """Run `work`; a broken connection is an error unless the other side has left before."""
        try:
            work()
        except OSError as error:
            if stream.left_after is None:
                raise ParallelError(
                    f"{stream.spec.label} is gone, its connection to {self._config.label} broke: {error}"
                ) from None
            self._forget(stream)

    def _forget(self, stream: Stream) -> None:
        self._selector.unregister(stream.socket)
        self._streams.remove(stream)
        stream.close()

    def _flush(self, stream: Stream) -> None:
        if stream.pending:
            self._guard(stream, stream.flush)
        if stream in self._streams:
            # A socket is nearly always writable: asking for that without anything to send would spin.
            writes = selectors.EVENT_WRITE if stream.pending else 0
            self._selector.modify(stream.socket, selectors.EVENT_READ | writes, stream)

    def _tick(self, now: float) -> None:
        """Send signs of life. Raises `ParallelError` for silent processes, and for ranks that are late."""
        # A copy of the list, because `_flush` may remove a stream: the one behind it would be skipped.
        for stream in tuple(self._streams):
            if now - stream.received_s > self._config.silence and stream.left_after is None:
                raise ParallelError(self._silent(now))
            # Queued messages will serve as signs of life themselves.
            if now - stream.sent_s > _ALIVE_EVERY and not stream.pending:
                stream.send(Header(Kind.ALIVE))
                self._flush(stream)
        for slots, own in self._flow.waiting():
            missing = slots.missing(own, self._config.late) if slots else None
            if missing:
                raise ParallelError(
                    f"{missing} did not submit what the other ranks have submitted, for {self._config.late:g} s: it "
                    "computes for much longer than they do, or waits for something else"
                )

    def _silent(self, now: float) -> str:
        silent = [stream.spec.label for stream in self._streams if now - stream.received_s > self._config.silence]
        # If everybody is silent at once, this process's own network is the likelier cause.
        all_silent = len(silent) > 1 and len(silent) == len(self._streams)
        hint = f" All are silent: it may be {self._config.label} itself that lost its network." if all_silent else ""
        return (
            f"{', '.join(silent)} stopped answering {self._config.label}: nothing came for {self._config.silence:g} s. "
            f"It was stopped or its network is gone.{hint}"
        )

    def _stop(self, reason: str) -> None:
        """Send the reason to all connected processes, as far as the connections take it at once."""
        self._failure = reason
        body = reason.encode(errors="replace")[:MAX_REASON_BYTES]
        for stream in self._streams:
            # Queued chunks would delay the reason behind a peer that no longer reads.
            stream.drop()
            stream.send(Header(Kind.ABORT, length=len(body)), body)
            with contextlib.suppress(OSError):
                stream.flush()

    def _linger(self) -> None:
        """Keep the connections open until the others have read the reason, for at most a second."""
        until = time.monotonic() + _ABORT_SECONDS
        unfinished = self._streams
        while unfinished and time.monotonic() < until:
            unfinished = [stream for stream in unfinished if not stream.finish()]
            time.sleep(0.01 if unfinished else 0)

    def _has_left(self) -> bool:
        """Once closing: finish the sums, send LEAVE, and return True when all others have acknowledged it.

        A helper closes by itself when all its ranks have left.
        """
        if not self._closing and (
            self._config.member >= 0 or any(stream.left_after is None for stream in self._all_streams)
        ):
            return False
        now = time.monotonic()
        self._closed_at = self._closed_at or now
        if self._leaving is None and self._buffers.done_below < self._numbered and now - self._closed_at < _LINGER:
            return False
        if self._leaving is None:
            self._leaving = now
            for stream in tuple(self._streams):
                # The number of finished buffers lets the others name this process if they submit more.
                stream.send(Header(Kind.LEAVE, sequence=self._buffers.done_below))
                self._flush(stream)
        return now - self._leaving > _LINGER or all(s.acknowledged and not s.pending for s in self._streams)

    def _take_submitted(self) -> None:
        """Move submitted buffers into the flow."""
        # Empty the pipe before taking the list: a submission in between wakes this thread again.
        os.read(self._wake_out, 4096)
        with self._changed:
            submitted, self._submitted = self._submitted, []
        for submission in submitted:
            buffer = self._buffers.add(submission, self._config)
            if not buffer.remaining:
                # A buffer without elements has no chunks, so no later event would finish it.
                self._finish(buffer.sequence)
        self._check_left()

    def _check_left(self) -> None:
        """Raise `ParallelError` if a process has left that the buffers submitted since then need."""
        for stream in self._all_streams:
            if stream.left_after is None or self._buffers.submitted <= stream.left_after or self._closing:
                continue
            if stream.spec.role is Role.HELPER:
                raise ParallelError(f"{stream.spec.label} was ended while {self._config.label} still needs it")
            raise ParallelError(
                f"{stream.spec.label} left after {stream.left_after} buffers, and {self._config.label} submits more: "
                "all ranks submit the same buffers before they close"
            )

    def _finish(self, sequence: int) -> None:
        with self._changed:
            # Under the lock, because waiting callers evaluate `is_done` under it.
            self._buffers.finish(sequence)
            self._changed.notify_all()
        self._notify_completions()

    def _destination(self, stream: Stream, header: Header) -> memoryview:
        if header.kind == Kind.ABORT:
            return memoryview(bytearray(header.length))
        return self._flow.destination(stream, header)

    def _deliver(self, stream: Stream, header: Header, body: memoryview) -> None:
        if header.kind in (Kind.PUSH, Kind.SUM):
            self._flow.deliver(stream, header, body)
        elif header.kind == Kind.ABORT:
            raise ParallelError(bytes(body).decode(errors="replace"))
        elif header.kind == Kind.LEAVE:
            stream.left_after = header.sequence
            stream.send(Header(Kind.LEFT))
            self._check_left()
        elif header.kind == Kind.LEFT:
            stream.acknowledged = True
        # ALIVE needs no handling: `Stream.receive` has noted the time.

    def _wake(self) -> None:
        _signal(self._wake_in)

    def _notify_completions(self) -> None:
        _signal(self._done_in)


def _signal(descriptor: int) -> None:
    # A full pipe is readable, so its reader is awake already.
    with contextlib.suppress(BlockingIOError):
        os.write(descriptor, b"!")
