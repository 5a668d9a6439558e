"""A view of a running job that grows with its events."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING

from herringbone.events.source import FileEvents, decode_lines
from herringbone.events.view import JobView, Progress

if TYPE_CHECKING:
    from herringbone.protocols.backend import EventSource


# The end of a file in which a progress that still comes has its newest event.
_TAIL_BYTES = 1 << 18


def newest_progress(source: EventSource, view: Callable[[], JobView]) -> Progress | None:
    """Return a job's progress, from the ends of its files if that is possible; `view` reads all of its events."""
    with closing(source):
        if not isinstance(source, FileEvents):
            return view().progress
        tails = JobView()
        complete = True
        for path in source.paths:
            try:
                with path.open("rb") as file:
                    size = file.seek(0, os.SEEK_END)
                    file.seek(max(0, size - _TAIL_BYTES))
                    lines = file.read()
            except FileNotFoundError:
                continue
            complete = complete and size <= _TAIL_BYTES
            # The first line may be cut, and the last one unfinished; those are no events.
            for event in decode_lines(b"\n".join(line for line in lines.split(b"\n") if b'"progress"' in line)):
                if tails.progress is None or event["t"] >= tails.progress.time:
                    tails.take(event)
    return tails.progress if tails.progress is not None or complete else view().progress


class LiveView:
    """Reads a job's events into one `JobView`.

    >>> with closing(job.live_view()) as live:                       # doctest: +SKIP
    ...     print(live.read().progress)

    `view` is what was read so far.
    """

    def __init__(self, source: EventSource) -> None:
        self._source = source
        self.view = JobView()

    def read(self) -> JobView:
        """Take what has arrived since the last call, without waiting, and return the view."""
        while events := self._source.read():
            self.view.take_all(events)
        return self.view

    def rest(self, ended: float | None) -> JobView:
        """Take the remaining events of a job that is over, for which a service may have to be waited for."""
        for events in self._source.rest(ended):
            self.view.take_all(events)
        return self.view

    def close(self) -> None:
        """Close files and connections."""
        self._source.close()
