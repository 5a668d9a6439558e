"""The log of a job without the events among its lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from herringbone.records.logs import LogLine, first_shown, without_events

if TYPE_CHECKING:
    from herringbone.protocols.backend import LogSource


class ShownLogs:
    """The lines of another `LogSource` without events."""

    def __init__(self, source: LogSource) -> None:
        self._source = source

    def read(self) -> list[LogLine]:
        return first_shown(self._source.read)

    def rest(self, ended: float | None) -> Iterator[list[LogLine]]:
        for lines in self._source.rest(ended):
            if shown := without_events(lines):
                yield shown

    def close(self) -> None:
        self._source.close()
