"""Decide that a job stands still: no rank of any host has moved for `limit` seconds. Pure."""

from __future__ import annotations

from collections.abc import Iterable


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
        self._limit = self._threshold = limit

    def take(self, host: str, quiet: float) -> float | None:
        """Take a host's report, in seconds; return how long the job stands still if it is time to look."""
        if host in self._quiet:
            self._quiet[host] = quiet
        quietest = min(self._quiet.values(), default=0.0)
        if quietest < self._limit:
            self._threshold = self._limit
        if quietest < self._threshold:
            return None
        self._threshold = 2 * quietest
        return quietest

    def excuse(self, quiet: float, age: float) -> None:
        """Look again sooner: although hosts were quiet for `quiet` seconds, something moved `age` seconds ago."""
        self._threshold = quiet + self._limit - age
