"""The events of a job of a service, from all that the service has of it.

log             [algo-1] \\x1e{json}      what the host's supervisor and its observer have sent
                other lines              metrics: MLLOG lines and matches of metric_definitions, found here
description                              state changes, and from the end the bill
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

from herringbone.events.from_log import Finder, find_metrics, metric_events
from herringbone.events.metrics import definitions_of
from herringbone.events.source import by_time, decode_lines
from herringbone_contract.errors import ServiceError

if TYPE_CHECKING:
    from herringbone.protocols.backend import LogSource
    from herringbone.records.index import JobRecord
    from herringbone.records.logs import LogLine
    from herringbone_contract.events.format import Event

_OF_THE_JOB = ("state", "restart", "bill")


class ServiceEvents:
    """The events of one job, as an `EventSource`.

    `lines` is the log with the supervisors' events in it, `describe` asks for the job's row, and `bill` for the cost of
    a job that is over.
    """

    def __init__(self, lines: LogSource, describe: Callable[[], JobRecord], bill: Callable[[], str | None]) -> None:
        self._lines, self._describe, self._bill = lines, describe, bill
        self._finder: Finder | None = None
        self._num_states = 0
        self._is_billed = False

    def read(self) -> list[Event]:
        record = self._describe()
        # An empty answer means that there is no more, so lines without an event are not returned as such.
        while not (events := [*self._states(record)]) and (lines := self._lines.read()):
            if events := self._of_lines(record, lines):
                break
        return events

    def rest(self, ended: float | None) -> Iterator[list[Event]]:
        record = self._describe()
        states = list(self._states(record))
        for lines in self._lines.rest(ended):
            events = self._of_lines(record, lines)
            # The states come among the events of their time: the end comes last.
            due = [state for state in states if events and state["t"] <= events[-1]["t"]]
            states = states[len(due) :]
            if events:
                yield by_time([due, events])
        if states:
            yield states
        if not self._is_billed:
            self._is_billed = True
            # Prices are a service of their own, which may not be allowed.
            with suppress(ServiceError):
                if text := self._bill():
                    yield [{"kind": "bill", "t": record.ended or record.created, "text": text}]

    def close(self) -> None:
        self._lines.close()

    def _states(self, record: JobRecord) -> Iterator[Event]:
        """Yield the states that the job has reached since the last call."""
        states = states_of(json.loads(record.description or "{}"))
        new, self._num_states = states[self._num_states :], max(self._num_states, len(states))
        yield from new

    def _of_lines(self, record: JobRecord, lines: Iterable[LogLine]) -> list[Event]:
        if self._finder is None:
            self._finder = Finder.of(definitions_of(record))
        sent, texts = [], []
        for line in lines:
            if line.event is None:
                texts.append(line)
            else:
                # Only the service knows the job's states; a host that sends some is not believed.
                events = (event for event in decode_lines(line.event.encode()) if event["kind"] not in _OF_THE_JOB)
                sent += [{**event, "host": line.host} for event in events]
        return by_time([sent, list(metric_events(find_metrics(texts, self._finder)))])


def states_of(description: dict[str, Any]) -> list[Event]:
    """Return the `state` events of a description, as `DescribeTrainingJob` has it and the index stores it.

    >>> states_of({"SecondaryStatusTransitions": [
    ...     {"Status": "Starting", "StartTime": "1970-01-01T00:00:07+00:00", "StatusMessage": "Preparing"}]})
    [{'kind': 'state', 't': 7.0, 'state': 'Starting', 'why': 'Preparing'}]
    """
    events: list[Event] = []
    for entry in description.get("SecondaryStatusTransitions") or ():
        start = entry.get("StartTime")
        with suppress(TypeError, ValueError):
            time = start if isinstance(start, (int, float)) else datetime.fromisoformat(start).timestamp()
            events.append(
                {"kind": "state", "t": time, "state": entry["Status"], "why": entry.get("StatusMessage") or ""}
            )
    return events
