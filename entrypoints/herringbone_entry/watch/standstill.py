"""Decide that a job hangs: no rank of any host has moved for `limit` seconds, and no rank has been at work. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

# Work without a line, metric or collective (an evaluation, a large checkpoint, a download, a compilation) makes a job
# hang only after so many times the limit.
WORK_FACTOR = 5.0


class Standstill:
    """Takes each host's time since a rank of its own last moved, and decides when to look at the ranks.

    >>> standstill = Standstill(["algo-1", "algo-2"], limit=60.0)
    >>> standstill.take("algo-1", 61.0), standstill.take("algo-2", 60.5), standstill.take("algo-1", 62.0)
    (None, 60.5, None)

    After `limit` seconds, and again each time that the standstill has become twice as long. Each host measures with its
    own clock, so the hosts' clocks need not agree, and a late report delays the decision and never causes one.
    """

    def __init__(self, hosts: Iterable[str], limit: float) -> None:
        # A host that has not reported may be about to report a move.
        self._quiet = dict.fromkeys(hosts, 0.0)
        self._idle: dict[str, Mapping[int, float]] = {}
        self._starved: dict[str, bool] = {}
        self._limit = self._threshold = limit

    def take(
        self, host: str, quiet: float, idle: Mapping[int, float] | None = None, *, is_starved: bool = False
    ) -> float | None:
        """Take a host's report, in seconds; return how long the job stands still if it is time to look.

        `idle` is how long each of its ranks has neither computed, nor read or written; `is_starved` means that others
        had the CPUs that they wanted.
        """
        if host in self._quiet:
            self._quiet[host] = quiet
            self._idle[host], self._starved[host] = idle or {}, is_starved
        quietest = min(self._quiet.values(), default=0.0)
        if quietest < self._limit:
            self._threshold = self._limit
        if quietest < self._threshold:
            return None
        self._threshold = 2 * quietest
        return quietest

    def at_work(self, quiet: float, waiting: Iterable[int]) -> bool:
        """Report that a rank is at work or wants to be.

        Those `waiting` for others do not count: some compute to wait.

        >>> standstill = Standstill(["a"], 60.0)
        >>> looks_at = standstill.take("a", 61.0, {0: 99.0, 1: 2.0})
        >>> standstill.at_work(61.0, waiting=[]), standstill.at_work(61.0, waiting=[1]), standstill.at_work(301.0, [])
        (True, False, False)
        """
        idle = {rank: seconds for ranks in self._idle.values() for rank, seconds in ranks.items()}
        working = {rank for rank, seconds in idle.items() if seconds < self._limit} - set(waiting)
        return quiet < WORK_FACTOR * self._limit and (bool(working) or any(self._starved.values()))

    def excuse(self, quiet: float, age: float) -> None:
        """Look again sooner: although hosts were quiet for `quiet` seconds, something moved `age` seconds ago."""
        self._threshold = quiet + self._limit - age
