"""A view of a running job that grows with its events."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING

from herringbone.events.source import FileEvents, by_time, decode_lines, tail
from herringbone.events.view import JobView

if TYPE_CHECKING:
    from herringbone.events.kinds import Progress
    from herringbone.protocols.backend import EventSource


def newest_progress(source: EventSource, view: Callable[[], JobView]) -> Progress | None:
    """Return a job's progress, from the ends of its files if that is possible; `view` reads all of its events."""
    with closing(source):
        if not isinstance(source, FileEvents):
            return view().progress
        ends = [tail(path) for path in source.paths]
        lines = [line for end, _ in ends for line in end.split(b"\n") if b'"progress"' in line]
        progress = JobView().take_all(by_time([decode_lines(b"\n".join(lines))])).progress
    return progress if progress is not None or all(whole for _, whole in ends) else view().progress


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
