"""The supervisor's event loop: it waits for descriptors, signals and timers in one thread."""

from __future__ import annotations

import heapq
import itertools
import os
import selectors
import signal
import time
from collections.abc import Callable, Mapping

Callback = Callable[[], None]


class Timer:
    """A call that is due at `due` (seconds, monotonic clock) unless cancelled."""

    def __init__(self, due: float, callback: Callback) -> None:
        self.due = due
        self.callback: Callback | None = callback

    def cancel(self) -> None:
        """Drop the call; the loop removes the timer when it comes to it."""
        self.callback = None


class Loop:
    """Calls back when a descriptor can be read or written, a signal came, or a time is due.

    >>> loop = Loop()
    >>> _ = loop.later(0.0, lambda: loop.stop(7))
    >>> loop.run()
    7

    Callbacks run one after the other in the thread that called `run`. So no object of the supervisor needs a lock,
    and no callback may block.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Timer]] = []
        # Timers that are due at the same time run in the order in which they were made.
        self._order = itertools.count()
        self._result: int | None = None

    def run(self) -> int:
        """Run callbacks until `stop`; return its argument."""
        while self._result is None:
            # Descriptors before timers: a message that has arrived counts before a deadline is declared missed.
            for key, ready in self._selector.select(self._patience()):
                on_read, on_write = key.data
                # An earlier callback of this turn may have closed this descriptor, or given it to another callback.
                if self._selector.get_map().get(key.fd) is not key:
                    continue
                callback = on_read if ready & selectors.EVENT_READ else on_write
                callback()
            # Read the clock once: a timer that a callback makes with no delay runs in the next turn, not in this one.
            now = time.monotonic()
            while self._timers and self._timers[0][0] <= now:
                timer = heapq.heappop(self._timers)[2]
                if timer.callback is not None:
                    timer.callback()
        return self._result

    def stop(self, result: int) -> None:
        """Have `run` return `result` after this turn."""
        self._result = result

    def read(self, descriptor: int, callback: Callback) -> None:
        """Call back whenever the descriptor can be read, which includes its end."""
        self._selector.register(descriptor, selectors.EVENT_READ, (callback, None))

    def write(self, descriptor: int, callback: Callback) -> None:
        """Call back whenever the descriptor can be written."""
        self._selector.register(descriptor, selectors.EVENT_WRITE, (None, callback))

    def forget(self, descriptor: int) -> None:
        """Stop watching a descriptor; one that is not watched is no error."""
        if descriptor in self._selector.get_map():
            self._selector.unregister(descriptor)

    def later(self, seconds: float, callback: Callback) -> Timer:
        """Call back once, after so many seconds."""
        timer = Timer(time.monotonic() + seconds, callback)
        heapq.heappush(self._timers, (timer.due, next(self._order), timer))
        return timer

    def signals(self, callbacks: Mapping[signal.Signals, Callback]) -> None:
        """Call back from the loop, and not from a signal handler, when one of these signals has come.

        Call this once: Python reports all signals of a process over one pipe.
        """
        reader, writer = os.pipe()
        for end in (reader, writer):
            os.set_blocking(end, False)
        for number in callbacks:
            # Python itself writes the signal's number to the pipe, but only for a signal that has a handler.
            signal.signal(number, lambda *_: None)
            signal.siginterrupt(number, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

        def wake() -> None:
            for number in os.read(reader, 4096):
                if number in callbacks:
                    callbacks[signal.Signals(number)]()

        self.read(reader, wake)

    def _patience(self) -> float | None:
        # A cancelled timer must not wake the loop.
        while self._timers and self._timers[0][2].callback is None:
            heapq.heappop(self._timers)
        if not self._timers:
            return None
        return max(0.0, self._timers[0][0] - time.monotonic())
