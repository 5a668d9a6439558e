"""Decide that a job stands still: no rank of any host has moved for `limit` seconds. Pure."""

from __future__ import annotations

from collections.abc import Iterable


class Standstill:
    """Takes each host's time since a rank of its own last moved; reports each standstill once.

    >>> standstill = Standstill(["algo-1", "algo-2"], limit=60.0)
    >>> standstill.take("algo-1", 61.0), standstill.take("algo-2", 60.5), standstill.take("algo-1", 62.0)
    (None, 60.5, None)

    Each host measures with its own clock, so the hosts' clocks need not agree, and a late report delays the decision
    and never causes one.
    """

    def __init__(self, hosts: Iterable[str], limit: float) -> None:
        # A host that has not reported may be about to report a move.
        self._quiet = dict.fromkeys(hosts, 0.0)
        self._limit = self._threshold = limit
        self._is_reported = False

    def take(self, host: str, quiet: float) -> float | None:
        """Take a host's report, in seconds; return how long the job stands still if it is time to report that."""
        if host in self._quiet:
            self._quiet[host] = quiet
        quietest = min(self._quiet.values(), default=0.0)
        if quietest < self._limit:
            self._is_reported, self._threshold = False, self._limit
        if self._is_reported or quietest < self._threshold:
            return None
        self._is_reported = True
        return quietest

    def forget(self, host: str) -> None:
        """Expect no more reports of a host: it is lost."""
        self._quiet.pop(host, None)

    def excuse(self, quiet: float, age: float) -> None:
        """Take back a report: although hosts were quiet for `quiet` seconds, something moved `age` seconds ago."""
        self._is_reported = False
        self._threshold = quiet + self._limit - age
