"""Decide that a job does not use its devices, from the samples of its hosts. Pure.

A host is unused in a sample if each of its GPUs is used for less than a twentieth of the time. Without a reading of a
GPU, the processes of the host count: together they use less than a twentieth of one core for each rank. The job is idle
as long as all of its hosts have been unused without a break. A host counts from its first sample on, a second after
the start of its ranks, so downloads and installations before that are no idleness.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

LEAST_USE = 0.05
# A host whose observer has ended sends no samples, and nobody knows whether it is used.
_FRESH_SAMPLES, _FRESH_SECONDS = 3.0, 30.0


class HostIdleness:
    """Takes the samples of one host, in their order.

    >>> host = HostIdleness()
    >>> host.take({"seconds": 60.0, "cpu": 0.01}), host.take({"seconds": 60.0, "gpus": [{"use": 0.0}], "cpu": 3.0})
    ((60.0, 60.0, 'processors'), (120.0, 60.0, 'GPUs'))
    """

    def __init__(self) -> None:
        self._seconds = 0.0

    def take(self, sample: Mapping[str, Any]) -> tuple[float, float, str]:
        """Return for how long the host has been unused, the seconds that the sample covers, and the kind of device."""
        gpus = [gpu["use"] for gpu in sample.get("gpus") or () if gpu.get("use") is not None]
        if gpus:
            is_unused = max(gpus) < LEAST_USE
        else:
            # Without a figure nobody knows, and a job is stopped only for what somebody knows.
            is_unused = sample.get("cpu", 1e9) < LEAST_USE * max(1, len(sample.get("ranks") or ()))
        covers = float(sample.get("seconds", 0.0))
        self._seconds = self._seconds + covers if is_unused else 0.0
        return self._seconds, covers, "GPUs" if gpus else "processors"


class JobIdleness:
    """Takes the reports of all hosts with training ranks; times are those of one clock, in seconds.

    >>> job = JobIdleness(["algo-1", "algo-2"], limit=600.0)
    >>> [job.take(host, 310.0, 10.0, now=0.0) for host in ("algo-1", "algo-2")]
    [None, 310.0]

    It returns the seconds for which the job has been idle when half of the limit is over, at the limit, and 0.0 when a
    device is used again after that.
    """

    def __init__(self, hosts: Iterable[str], limit: float) -> None:
        # For how long each host has been unused, and until when its report counts.
        self._reports = dict.fromkeys(hosts, (0.0, 0.0))
        self._limit, self._told = limit, 0.0

    def take(self, host: str, seconds: float, covers: float, now: float) -> float | None:
        """Take a host's report; return the seconds of idleness that are news, else None."""
        if host in self._reports:
            self._reports[host] = seconds, now + _FRESH_SAMPLES * covers + _FRESH_SECONDS
        idle = min(unused if now <= end else 0.0 for unused, end in self._reports.values())
        news = next((step for step in (self._limit, self._limit / 2) if idle >= step), 0.0)
        if news == self._told or (0.0 < news < self._told):
            return None
        self._told = news
        return idle if news else 0.0
