"""The interface between the observer's loop and its sources of events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from herringbone_contract.events.format import Event, Point


class Source:
    """One source of events and metrics; the defaults suit a source that holds nothing open.

    The loop calls all methods from one thread, about once a second. None of them may wait. A source that raises is
    reported once in the log, and dropped.
    """

    @property
    def descriptors(self) -> Sequence[int]:
        """Descriptors that have the loop call `poll` at once when they can be read."""
        return ()

    def poll(self, now: float) -> list[Event | Point]:
        """Return what is new; `now` is in seconds since 1970. The loop adds no member and drops invalid events."""
        raise NotImplementedError

    def last(self, now: float) -> list[Event | Point]:
        """Return what is new when the ranks have ended; the loop calls this once, in place of `poll`."""
        return self.poll(now)

    def ranks_changed(self, ranks: Mapping[int, int]) -> None:
        """Note the pids of this host's ranks, by rank."""

    def heard(self, points: Sequence[Point]) -> None:
        """Take the values of metrics that the sources before this one have collected since the last flush."""

    def obey(self, order: Mapping[str, str]) -> None:
        """Take the removal of a checkpoint, which another host has decided."""

    def close(self) -> None:
        """Release what the source holds; `poll` is not called again."""
