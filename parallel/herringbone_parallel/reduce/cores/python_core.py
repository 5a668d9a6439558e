"""The core in Python: the same messages, the same order of sums, the same bits as the native one, at Python's pace.

`flow` knows what to do with chunks; here is the thread that reads, writes, listens for signs of life and ends in order.
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
from herringbone_parallel.reduce.cores.messages import Header, Kind
from herringbone_parallel.reduce.cores.stream import Stream

_TICK = 0.25
_ALIVE_EVERY = 0.5
_LINGER = 2.0
_ABORT_SECONDS = 1.0
_MAX_REASON = 64 << 10


class FallbackCore:
    """One I/O thread; see `core.Core` for what its methods promise."""

    def __init__(self, config: CoreConfig) -> None:
        self._config = config
        self._buffers = Buffers()
        self._changed = threading.Condition()
        self._submitted: list[Submission] = []
        self._numbered = 0
        self._failure: str | None = None
        self._closing = False
        self._ended = False
        self._wake_out, self._wake_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._done_out, self._done_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._streams = [
            Stream(spec, config.local_limit if spec.role is Role.LOCAL else config.limit, self._place, self._take)
            for spec in config.links
        ]
        self._everyone = tuple(self._streams)
        self._flow = Flow(config, self._buffers, self._streams, self._finish)
        self._closed_at = 0.0
        self._leaving: float | None = None
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_out, selectors.EVENT_READ)
        for stream in self._streams:
            self._selector.register(stream.socket, selectors.EVENT_READ, stream)
        self._ticked = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="herringbone-reduce", daemon=True)
        self._thread.start()

    def submit(self, submission: Submission) -> int:
        with self._changed:
            if self._failure is not None or self._closing:
                raise ParallelError(self._failure or "the engine is closed")
            self._submitted.append(submission)
            self._numbered += 1
            number = self._numbered - 1
        self._wake()
        return number

    def wait(self, sequence: int, timeout: float | None) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._buffers.is_done(sequence), timeout)
            return self._buffers.is_done(sequence)

    def done(self, sequence: int) -> bool:
        return self._buffers.is_done(sequence)

    def failure(self) -> str | None:
        return self._failure

    def counts(self) -> list[LinkCount]:
        return [stream.count() for stream in self._everyone]

    def completions(self) -> int:
        return self._done_out

    def ended(self) -> bool:
        return self._ended

    def close(self) -> None:
        with self._changed:
            first, self._closing = not self._closing, True
        if first:
            self._wake()
            self._thread.join()

    def __del__(self) -> None:
        # Not in `close`: a thread may wait for the completions of a closed core.
        with contextlib.suppress(AttributeError):
            for descriptor in (self._wake_out, self._wake_in, self._done_out, self._done_in):
                os.close(descriptor)

    # The I/O thread's from here on.

    def _run(self) -> None:
        try:
            while not self._left_in_order():
                self._turn()
        except (ParallelError, OSError) as error:
            self._stop(str(error))
        except BaseException as error:
            self._stop(f"{self._config.label} stopped by a mistake of our own: {error!r}")
            raise
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()
            self._tell()
            if self._failure is not None:
                self._linger()
            for stream in self._streams:
                stream.close()
            self._selector.close()

    def _turn(self) -> None:
        events = self._selector.select(_TICK)
        now = time.monotonic()
        if now - self._ticked > 4 * _TICK:
            # This process itself was stopped: what others sent meanwhile is still to be read.
            for stream in self._streams:
                stream.heard = now
        for key, _ in events:
            if key.data is None:
                self._take_submitted()
            else:
                self._guard(key.data, key.data.receive)
        self._flow.run()
        for stream in tuple(self._streams):
            self._flush(stream)
        if now - self._ticked >= _TICK or not events:
            self._ticked = now
            self._tick(now)

    def _guard(self, stream: Stream, work: Callable[[], None]) -> None:
        try:
            work()
        except OSError as error:
            if stream.left is None:
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
            writes = selectors.EVENT_WRITE if stream.pending else 0
            self._selector.modify(stream.socket, selectors.EVENT_READ | writes, stream)

    def _tick(self, now: float) -> None:
        for stream in self._streams:
            if now - stream.heard > self._config.silence and stream.left is None:
                raise ParallelError(self._silent(now))
            if now - stream.spoke > _ALIVE_EVERY and not stream.pending:
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
        silent = [stream.spec.label for stream in self._streams if now - stream.heard > self._config.silence]
        every = len(silent) > 1 and len(silent) == len(self._streams)
        own = f" All are silent: it may be {self._config.label} itself that lost its network." if every else ""
        return (
            f"{', '.join(silent)} stopped answering {self._config.label}: nothing came for {self._config.silence:g} s. "
            f"It was stopped or its network is gone.{own}"
        )

    def _stop(self, reason: str) -> None:
        """Tell everybody why, as far as the connections carry it at once."""
        self._failure = reason
        body = reason.encode()[:_MAX_REASON]
        for stream in self._streams:
            stream.drop()
            stream.send(Header(Kind.ABORT, length=len(body)), body)
            with contextlib.suppress(OSError):
                stream.flush()

    def _linger(self) -> None:
        """See that what was sent last arrives."""
        until = time.monotonic() + _ABORT_SECONDS
        left = self._streams
        while left and time.monotonic() < until:
            left = [stream for stream in left if not stream.finish()]
            time.sleep(0.01 if left else 0)

    def _left_in_order(self) -> bool:
        """Once closing: sum what is under way, say that there will be no more, and end when everybody has read it."""
        if not self._closing and (self._config.member >= 0 or any(stream.left is None for stream in self._everyone)):
            return False
        now = time.monotonic()
        self._closed_at = self._closed_at or now
        if self._leaving is None and self._buffers.done_below < self._numbered and now - self._closed_at < _LINGER:
            return False
        if self._leaving is None:
            self._leaving = now
            for stream in tuple(self._streams):
                stream.send(Header(Kind.LEAVE, sequence=self._buffers.done_below))
                self._flush(stream)
        return now - self._leaving > _LINGER or all(s.answered and not s.pending for s in self._streams)

    def _take_submitted(self) -> None:
        os.read(self._wake_out, 4096)
        with self._changed:
            submitted, self._submitted = self._submitted, []
        for submission in submitted:
            buffer = self._buffers.add(submission, self._config)
            if not buffer.remaining:
                self._finish(buffer.sequence)
        self._check_left()

    def _check_left(self) -> None:
        """Who has left cannot take part in what is submitted now."""
        for stream in self._everyone:
            if stream.left is None or self._buffers.submitted <= stream.left or self._closing:
                continue
            if stream.spec.role is Role.HELPER:
                raise ParallelError(f"{stream.spec.label} was ended while {self._config.label} still needs it")
            raise ParallelError(
                f"{stream.spec.label} left after {stream.left} buffers, and {self._config.label} submits more: all "
                "ranks submit the same buffers before they close"
            )

    def _finish(self, sequence: int) -> None:
        with self._changed:
            self._buffers.finish(sequence)
            self._changed.notify_all()
        self._tell()

    def _place(self, stream: Stream, header: Header) -> memoryview:
        if header.kind == Kind.ABORT:
            return memoryview(bytearray(min(header.length, _MAX_REASON)))
        return self._flow.place(stream, header)

    def _take(self, stream: Stream, header: Header, body: memoryview) -> None:
        if header.kind in (Kind.PUSH, Kind.SUM):
            self._flow.take(stream, header, body)
        elif header.kind == Kind.ABORT:
            raise ParallelError(bytes(body).decode(errors="replace"))
        elif header.kind == Kind.LEAVE:
            stream.left = header.sequence
            stream.send(Header(Kind.LEFT))
            self._check_left()
        elif header.kind == Kind.LEFT:
            stream.answered = True

    def _wake(self) -> None:
        _ring(self._wake_in)

    def _tell(self) -> None:
        _ring(self._done_in)


def _ring(descriptor: int) -> None:
    # A full pipe has woken its reader already.
    with contextlib.suppress(BlockingIOError):
        os.write(descriptor, b"!")
