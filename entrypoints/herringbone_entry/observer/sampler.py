"""Samples of a host's resources: measured once a second, written as means over growing intervals.

A sample a second for a month would be 2.6 million lines. So the interval is 1 s in the first hour, and from then on a
3600th of the time since the start: 27,000 samples in a month.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol

from herringbone_contract.events.format import Event, Point
from herringbone_entry.observer.gpus import Gpu
from herringbone_entry.observer.source import Source
from herringbone_entry.observer.usage import HostUsage, Usage, Waits

_POINTS = 3600
# The share of a core that measuring may take. A host with hundreds of processes is measured less often.
_MAX_SHARE = 0.003
# The ranks of a sample: one line must not grow beyond the limit of an event.
_MAX_RANKS = 256


def interval(elapsed: float, least: float = 1.0) -> float:
    """Return the time between two samples, in seconds, `elapsed` seconds after the start.

    >>> interval(60.0), interval(7200.0), interval(60.0, least=60.0)
    (1.0, 2.0, 60.0)
    """
    return max(least, 1.0, elapsed / _POINTS)


def seconds_since_boot() -> float:
    """Return the time since the machine's start, by which /proc counts the starts of processes."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Gpus(Protocol):
    """Reads all GPUs; without waiting for a driver."""

    def read(self) -> list[Gpu]: ...


class Sampler(Source):
    """Measures a host; all clocks are arguments, in seconds.

    `clock` counts from the machine's start, `cost` the CPU time of this thread. `least` is the least interval between
    samples.
    """

    def __init__(
        self,
        usage: HostUsage,
        ranks: Mapping[int, int],
        gpus: Gpus | None = None,
        *,
        least: float = 1.0,
        clock: Callable[[], float] = seconds_since_boot,
        cost: Callable[[], float] = time.thread_time,
    ) -> None:
        self._usage, self._ranks, self._gpus, self._least = usage, ranks, gpus, least
        self._clock, self._cost = clock, cost
        self._total: Event = {"memory_total": usage.memory_total()}
        if machine := usage.machine():
            self._total["machine"] = machine
        self._begun = self._since = clock()
        self._first = usage.read(ranks, self._since)
        self._measure_at = self._since
        # Of the moments of this interval: memory of the host and of its ranks, and all GPUs.
        self._memory: list[int] = []
        self._gpu_states: list[list[Gpu]] = []

    def ranks_changed(self, ranks: Mapping[int, int]) -> None:
        self._ranks = ranks

    def poll(self, now: float) -> list[Event | Point]:
        moment = self._clock()
        if moment < self._measure_at:
            return []
        began = self._cost()
        usage = self._usage.read(self._ranks, moment)
        self._memory.append(usage.memory)
        if self._gpus is not None:
            self._gpu_states.append(self._gpus.read())
        self._measure_at = moment + (self._cost() - began) / _MAX_SHARE
        seconds = moment - self._since
        # A moment's tolerance: polls come a little earlier or later than a second.
        if seconds < interval(moment - self._begun, self._least) * 0.9:
            return []
        event = sample(self._first, usage, seconds)
        event["memory"] = sum(self._memory) // len(self._memory)
        if self._gpu_states and any(self._gpu_states):
            event["gpus"] = mean_gpus(self._gpu_states)
        self._first, self._since, self._memory, self._gpu_states = usage, moment, [], []
        return [{"kind": "sample", "t": now, "seconds": round(seconds, 3), **self._total, **event}]


def sample(first: Usage, last: Usage, seconds: float) -> Event:
    """Return the members of a sample between two measurements that are `seconds` apart.

    >>> idle, busy = (Usage(cpu, 10, (0, 0), None, {}) for cpu in (1.0, 4.0))
    >>> sample(idle, busy, 2.0)
    {'cpu': 1.5, 'memory': 10, 'disk_read': 0, 'disk_write': 0}
    """
    event: Event = {"cpu": _rate(first.cpu, last.cpu, seconds), "memory": last.memory}
    for names, before, after in (
        (("disk_read", "disk_write"), first.disk, last.disk),
        (("net_in", "net_out"), first.net, last.net),
    ):
        if before is not None and after is not None:
            for name, begin, end in zip(names, before, after, strict=True):
                event[name] = int(_rate(begin, end, seconds))
    if last.ranks:
        event["ranks"] = {
            str(rank): {
                "cpu": _rate(first.ranks[rank].cpu, usage.cpu, seconds) if rank in first.ranks else 0.0,
                "memory": usage.memory,
                "state": usage.state,
                **_waits(first.ranks[rank].waits if rank in first.ranks else usage.waits, usage.waits, seconds),
            }
            for rank, usage in sorted(last.ranks.items())[:_MAX_RANKS]
        }
    return event


def _waits(first: Waits, last: Waits, seconds: float) -> dict[str, float]:
    """Return the rates of the waits that there were: most ranks have none."""
    rates = {name: _rate(getattr(first, name), getattr(last, name), seconds) for name in Waits._fields}
    return {name: rate for name, rate in rates.items() if rate}


def mean_gpus(states: list[list[Gpu]]) -> list[Event]:
    """Return the means of GPUs over some moments, by their number; a reading that a GPU does not give is None."""
    by_index: dict[int, list[Gpu]] = {}
    for state in states:
        for gpu in state:
            by_index.setdefault(gpu.number, []).append(gpu)
    return [
        {
            "index": index,
            "uuid": gpus[-1].uuid,
            "name": gpus[-1].name,
            "use": _mean([gpu.use for gpu in gpus], 3),
            "memory": _mean([gpu.memory for gpu in gpus], 0),
            "memory_total": gpus[-1].memory_total,
            "watts": _mean([gpu.watts for gpu in gpus], 1),
            "celsius": _mean([gpu.celsius for gpu in gpus], 1),
            **({"slowed": gpus[-1].slowed} if sum(bool(gpu.slowed) for gpu in gpus) * 2 > len(gpus) else {}),
        }
        for index, gpus in sorted(by_index.items())
    ]


def _mean(values: list[float | None], digits: int) -> float | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    mean = sum(known) / len(known)
    return round(mean, digits) if digits else int(mean)


def _rate(before: float, after: float, seconds: float) -> float:
    # A process that ended unreaped takes its counts along.
    return round(max(0.0, after - before) / seconds, 3) if seconds > 0 else 0.0
