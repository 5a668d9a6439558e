"""A view of a running job that grows with its events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from herringbone.events.view import JobView

if TYPE_CHECKING:
    from herringbone.backends.base import EventSource


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
