"""The FIFO of a host's ranks: events of `herringbone_contract.events.emit`, checked and bounded.

Whatever a script writes there is hostile: lines that are no events, kinds that only a supervisor may send, texts of any
length, times of any century. Members are copied one by one, and unknown ones are dropped.
"""

from __future__ import annotations

import array
import fcntl
import math
import os
import sys
import termios
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from herringbone_contract.events.emit import MAX_LINE_BYTES
from herringbone_contract.events.format import MAX_BATCH, MAX_NAME_CHARS, Event, Point, parse
from herringbone_entry.observer.source import Source

# Events of one rank in a second, and lines of all ranks: parsing a line takes about 5 microseconds.
MAX_EVENTS_PER_RANK = 1000
MAX_LINES = 8000
_READ_BYTES = 262_144
# More in one poll would keep the other sources waiting.
_MAX_POLL_BYTES = 8 << 20
_MAX_TEXT_CHARS = 256
_MAX_RANK = 1 << 20
# Clocks of processes of one machine are the same, so another time is a mistake.
_PAST_SECONDS, _FUTURE_SECONDS = 3600.0, 60.0


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 53


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _MAX_TEXT_CHARS


def _or_none(check: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or check(value)


def _is_list(check: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, list) and len(value) <= MAX_BATCH and all(map(check, value))


def _is_value(value: object) -> bool:
    """JSON has no numbers that are not finite, so they come as text."""
    if isinstance(value, str):
        return value in ("nan", "inf", "-inf")
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _is_span(value: object) -> bool:
    return isinstance(value, list) and len(value) <= 8 and all(_is_number(item) or _is_text(item) for item in value)


def _is_prediction(value: object) -> bool:
    return (
        isinstance(value, dict)
        and len(value) <= 8
        and all(map(_is_text, value))
        and all(map(_is_number, value.values()))
    )


# The kinds that ranks may send, and the checks of their members; `metric` becomes a point.
KINDS: Mapping[str, Mapping[str, Callable[[object], bool]]] = {
    "metrics": {
        "name": _is_text,
        "source": _is_text,
        "since": _is_number,
        "step": _or_none(_is_count),
        "by": _or_none(_is_count),
        "values": _is_list(_is_value),
    },
    "progress": {
        "done": _is_number,
        "total": _or_none(_is_number),
        "unit": _is_text,
        "eta": _or_none(_is_number),
    },
    "steps": {
        "count": _is_count,
        "since": _is_number,
        "seconds": _is_list(_is_number),
        "own": _or_none(_is_list(_is_number)),
    },
    "memory": {"peak": _is_count, "device": _is_text},
    "timeline": {
        "step": _is_count,
        "since": _or_none(_is_number),
        "spans": _is_list(_is_span),
        "bubble": _or_none(_is_number),
        "predicted": _or_none(_is_prediction),
    },
    "checksum": {"step": _is_count, "value": _is_text},
    "fingerprint": {
        "process": _is_text,
        "number": _is_count,
        "part": _is_count,
        "parts": _is_count,
        "text": lambda value: isinstance(value, str) and len(value) <= MAX_LINE_BYTES,
    },
}


def check(event: Event, now: float) -> Event | Point | None:
    """Return what an event of a rank is worth: a point, an event of known members, or None.

    >>> check({"kind": "metric", "t": 5.0, "rank": 0, "name": "loss", "value": 0.5, "step": 1}, now=5.0)
    Point(time=5.0, name='loss', value=0.5, step=1, rank=0, source='script', pace=None)
    """
    rank = event.get("rank")
    if rank is not None and not (_is_count(rank) and 0 <= rank < _MAX_RANK):
        return None
    time = event["t"] if now - _PAST_SECONDS <= event["t"] <= now + _FUTURE_SECONDS else now
    if event["kind"] == "metric":
        return _point(event, time, rank)
    checks = KINDS.get(event["kind"])
    if checks is None or not all(accepts(event.get(name)) for name, accepts in checks.items()):
        return None
    return {"kind": event["kind"], "t": time, "rank": rank, **{name: event[name] for name in checks if name in event}}


def _point(event: Event, time: float, rank: int | None) -> Point | None:
    name, value, step, source = (event.get(member) for member in ("name", "value", "step", "source"))
    if not (isinstance(name, str) and name and _is_value(value) and (step is None or _is_count(step))):
        return None
    assert value is not None
    known = source if _is_text(source) and source else "script"
    pace: Any = event.get("pace")
    is_pace = isinstance(pace, list) and len(pace) == 2 and all(map(_is_count, pace))
    return Point(time, name[:MAX_NAME_CHARS], float(value), step, rank, known, tuple(pace) if is_pace else None)


class Budget:
    """Counts the events of each rank within a second, and those beyond the limits."""

    def __init__(self, max_events: int = MAX_EVENTS_PER_RANK, max_lines: int = MAX_LINES) -> None:
        self._max_events, self._max_lines = max_events, max_lines
        self._second = -math.inf
        self._counts: Counter[int | None] = Counter()
        self._lines = 0
        self.lost: Counter[int | None] = Counter()

    def begin(self, now: float) -> None:
        """Begin a new second if the last one is over."""
        if not 0 <= now - self._second < 1.0:
            self._second, self._lines = now, 0
            self._counts.clear()

    def takes_line(self) -> bool:
        """Count a line before it is parsed; False if it is one too many for this host."""
        self._lines += 1
        return self._lines <= self._max_lines

    def takes(self, item: Event | Point) -> bool:
        """Count an event; False, and one more lost, if it is one too many for its rank."""
        rank = item.rank if isinstance(item, Point) else item["rank"]
        if isinstance(item, dict) and item["kind"] == "fingerprint":
            # The size of the FIFO limits these, in which they may have waited.
            return True
        self._counts[rank] += 1
        if self._counts[rank] > self._max_events:
            self.lost[rank] += 1
            return False
        return True

    def lost_events(self, now: float) -> list[Event]:
        """Return one event for each rank that has lost some, and forget them."""
        events: list[Event] = [
            {"kind": "lost", "t": now, "rank": rank, "count": count} for rank, count in self.lost.items()
        ]
        self.lost.clear()
        return events


class Fifo(Source):
    """Reads the FIFO behind a descriptor, which the supervisor keeps open for writing too: it never ends.

    >>> reader, writer = os.pipe()
    >>> _ = os.write(writer, b'{"kind":"progress","t":9.0,"rank":0,"done":1,"total":2,"unit":"step","eta":null}\\n')
    >>> [event] = Fifo(reader).poll(now=9.0)
    >>> event["done"], event["total"]
    (1, 2)
    """

    def __init__(self, descriptor: int, budget: Budget | None = None) -> None:
        self._descriptor = descriptor
        os.set_blocking(descriptor, False)
        self._rest = b""
        self._budget = budget or Budget()

    def poll(self, now: float) -> list[Event | Point]:
        self._budget.begin(now)
        items: list[Any] = []
        # The bytes that are there now, and no more: ranks may write without end.
        waiting = min(waiting_bytes(self._descriptor), _MAX_POLL_BYTES)
        while waiting > 0:
            try:
                chunk = os.read(self._descriptor, min(waiting, _READ_BYTES))
            except BlockingIOError:
                break
            if not chunk:
                break
            waiting -= len(chunk)
            self._take(chunk, now, items)
        return items + self._budget.lost_events(now)

    def _take(self, chunk: bytes, now: float, items: list[Any]) -> None:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        # Lines of `emit` arrive whole; a longer rest is no line of it.
        if len(self._rest) > _READ_BYTES:
            self._rest = b""
        for line in lines:
            if not self._budget.takes_line():
                self._budget.lost[None] += 1
                continue
            event = parse(line)
            item = None if event is None else check(event, now)
            if item is not None and self._budget.takes(item):
                items.append(item)


def waiting_bytes(descriptor: int) -> int:
    """Return the number of bytes in a pipe."""
    count = array.array("i", [0])
    fcntl.ioctl(descriptor, termios.FIONREAD, count)
    return count[0]
