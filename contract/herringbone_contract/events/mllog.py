"""Lines of MLPerf's training log, in which a script reports its run to programs. Pure.

    :::MLLOG {"namespace": "", "time_ms": 1556733699974, "event_type": "POINT_IN_TIME", "key": "eval_accuracy",
              "value": 0.64, "metadata": {"epoch_num": 4}}                                         (one line)

Source: MLCommons, "MLPerf Training: mllog" (github.com/mlcommons/logging).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

PREFIX = ":::MLLOG "
POINT, START, STOP = "POINT_IN_TIME", "INTERVAL_START", "INTERVAL_END"
# An interval called `epoch` lies between the keys `epoch_start` and `epoch_stop`.
START_ENDING, STOP_ENDING, SECONDS_ENDING = "_start", "_stop", "_seconds"


@dataclass(frozen=True)
class Event:
    """One line. `time_ms` is milliseconds since 1970; `value` is any JSON value, None if there is none."""

    key: str
    value: Any
    time_ms: int
    kind: str = POINT
    metadata: Mapping[str, Any] = field(default_factory=dict)


def render(event: Event) -> str:
    """Return the line of an event.

    >>> render(Event("seed", 3, 12)).removeprefix(PREFIX)
    '{"namespace": "", "time_ms": 12, "event_type": "POINT_IN_TIME", "key": "seed", "value": 3, "metadata": {}}'
    """
    content = {"namespace": "", "time_ms": event.time_ms, "event_type": event.kind, "key": event.key}
    return PREFIX + json.dumps({**content, "value": event.value, "metadata": dict(event.metadata)})


def parse(line: str) -> Event | None:
    """Return the event of a line, wherever its mark begins; None for any other line, and for a damaged one."""
    # Launchers and loggers print a prefix of their own before the mark.
    _, mark, text = line.partition(PREFIX)
    if not mark:
        return None
    try:
        content = json.loads(text)
        event = Event(
            content["key"],
            content.get("value"),
            content["time_ms"],
            content["event_type"],
            content.get("metadata") or {},
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    is_valid = (
        isinstance(event.key, str) and isinstance(event.time_ms, (int, float)) and isinstance(event.metadata, dict)
    )
    return event if is_valid else None


class Reader:
    """Extracts the numbers from one rank's events, which must come in their order.

    >>> reader = Reader()
    >>> reader.numbers(Event("run_start", None, 1000, START))
    []
    >>> reader.numbers(Event("run_stop", None, 3500, STOP))
    [('run_seconds', 2.5)]
    >>> reader.numbers(Event("tracked_stats", {"throughput": 120}, 3500))
    [('throughput', 120.0)]

    The end of an interval gives its duration. A value that is an object gives a number for each of its keys.
    """

    def __init__(self) -> None:
        self._starts: dict[str, float] = {}

    def numbers(self, event: Event) -> list[tuple[str, float]]:
        """Return the names and values in an event."""
        numbers = []
        if event.kind == START:
            self._starts[event.key.removesuffix(START_ENDING)] = event.time_ms
        elif event.kind == STOP:
            name = event.key.removesuffix(STOP_ENDING)
            # An end without a start, after a restart for example, has no duration.
            if (start := self._starts.pop(name, None)) is not None:
                with suppress(OverflowError):
                    numbers.append((name + SECONDS_ENDING, (event.time_ms - start) / 1000))
        values = event.value if isinstance(event.value, dict) else {event.key: event.value}
        for name, value in values.items():
            # bool is a subclass of int, and a switch is no measurement.
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                # JSON has integers of any length, and a float has a largest value.
                with suppress(OverflowError):
                    numbers.append((name, float(value)))
        return numbers
