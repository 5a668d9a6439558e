"""Values of metrics that wait until the supervisor takes them, so that none is lost without a word.

    metric("loss", 0.5, step=10, source="huggingface")        # in a rank
    close()                                                   # at its end

`emit` drops what finds no room, and the observer drops what is more than 1,000 events of a rank in a second. Here, a
value is sent at once while there were few in the last second, and later ones wait and travel together.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from herringbone_contract.events import emit
from herringbone_contract.events.format import Event, Point, batches

# Lines that this process sends in a second: less than half of what the observer takes, which counts other seconds.
MAX_LINES = 400
# Values that wait, about 100 bytes each.
MAX_WAITING = 200_000
# Values of one line: with the longest name and the longest numbers, it is shorter than PIPE_BUF.
_MAX_VALUES = 90
# How long the end of a process waits for the supervisor.
_LAST_SECONDS = 5.0


class Outbox:
    """Holds the values of one process. `send` sends an event, and returns False if there is no room for it.

    >>> sent = []
    >>> outbox = Outbox(lambda **event: not sent.append(event))
    >>> outbox.add(Point(1.0, "loss", 0.5, 10))
    >>> sent[0]["step"], sent[0]["values"]
    (10, [0.5])
    """

    def __init__(self, send: Callable[..., bool], max_waiting: int = MAX_WAITING) -> None:
        self._send, self._max_waiting = send, max_waiting
        # Values wait as points, and once they were sent in vain as events, of which each is one line.
        self._points: list[Point] = []
        self._events: deque[Event] = deque()
        self._second, self._lines, self._lost = 0.0, 0, 0

    @property
    def waiting(self) -> int:
        """The number of values that have not been sent."""
        return len(self._points) + sum(len(event["values"]) for event in self._events)

    def add(self, point: Point) -> None:
        """Send a value, or keep it for a later call."""
        if len(self._points) >= self._max_waiting:
            self._lost += 1
        else:
            self._points.append(point)
        self.flush(point.time)

    def flush(self, now: float) -> None:
        """Send as many values as this second allows."""
        if not 0 <= now - self._second < 1.0:
            self._second, self._lines = now, 0
        if self._lines >= MAX_LINES:
            return
        self._events.extend(batches(self._points, _MAX_VALUES))
        self._points.clear()
        while self._events and self._lines < MAX_LINES:
            if not self._send(**self._events[0]):
                # The next second has room again; until then values are only kept.
                self._lines = MAX_LINES
                return
            self._events.popleft()
            self._lines += 1

    def close(self, clock: Callable[[], float] = time.time, sleep: Callable[[float], None] = time.sleep) -> int:
        """Send what waits, as far as that is possible soon; report and return the number of values that are lost."""
        end = clock() + _LAST_SECONDS
        while self.waiting and clock() < end:
            self.flush(clock())
            if self.waiting:
                sleep(0.05)
        lost, self._lost = self.waiting + self._lost, 0
        self._points.clear()
        self._events.clear()
        if lost:
            text = f"herringbone: {lost} values of metrics are lost: they were more than the host can take"
            print(text, file=sys.stderr)
        return lost


_outbox: Outbox | None = None
_pid = 0


def metric(name: str, value: Any, step: int | None = None, *, source: str) -> None:
    """Send a value of a metric, exactly as it is, or keep it until there is room. For one thread of a process.

    What `float` does not take is dropped, and outside a job all is.
    """
    global _outbox, _pid
    try:
        number = float(value)
    # torch raises the last one, for a tensor of several elements.
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return
    if emit.descriptor() is None:
        return
    if _outbox is None or _pid != os.getpid():
        # A forked child must not send what its parent holds.
        import atexit

        _outbox, _pid = Outbox(emit.emit), os.getpid()
        atexit.register(close)
    _outbox.add(Point(time.time(), name, number, step, emit.rank(), source))


def close() -> None:
    """Send what this process holds, and report what is lost; a second call does nothing."""
    if _outbox is not None and _pid == os.getpid():
        _outbox.close()
