"""Find each rank's own time in a step by the moments at which ranks enter collective operations. Pure.

Ranks that wait for each other in every step all take as long as the slowest one. But the slowest one enters their
collective operations last, and its excess is the time for which it had not entered what another rank had:

    rank 0   ---- work ----[enters 7 . . . . . waits ][-- work --[enters 8
    rank 1   ------------ work ------------[enters 7  ][-- work --[enters 8
                            |<-- excess -->|
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from herringbone_entry.watch.stragglers import median


class Record(NamedTuple):
    """The last steps of a rank: the time at which each one ended, and at which it entered operations of groups.

    `error` is how many seconds the clock of the rank's host may be wrong.
    """

    host: str
    error: float
    ends: Mapping[int, float]
    entered: Mapping[tuple[str, int], float]


def read(host: str, raw: Mapping[str, Any], offset: float, error: float) -> Record:
    """Return the record of `ranks.recorder.entries`, in seconds of a clock; the host's is `offset` ahead."""
    origin = float(raw["origin"]) - offset
    ends = {int(raw["number"]) + place: origin + micros / 1e6 for place, micros in enumerate(raw["ends"])}
    entered = {(str(group), int(seq)): origin + t / 1e6 for group, pairs in raw["entered"].items() for seq, t in pairs}
    return Record(host, error, ends, entered)


def own_times(records: Mapping[int, Record], after: int) -> Iterator[tuple[int, float, dict[int, float]]]:
    """Yield for each step after `after` that all ranks took its number, its end, and each rank's own seconds.

    >>> ends = {1: 0.0, 2: 1.0}
    >>> records = {rank: Record("a", 0.0, ends, {("default_pg", 7): time}) for rank, time in enumerate((0.25, 0.75))}
    >>> list(own_times(records, after=0))
    [(2, 1.0, {0: 0.5, 1: 1.0})]

    A step in which no two ranks entered the same operation is left out.
    """
    first: dict[tuple[str, int], tuple[float, Record]] = {}
    count: dict[tuple[str, int], int] = {}
    for record in records.values():
        for operation, time in record.entered.items():
            count[operation] = count.get(operation, 0) + 1
            if operation not in first or time < first[operation][0]:
                first[operation] = time, record
    excesses: dict[int, dict[int, float]] = {}
    for rank, record in records.items():
        shared = {each: time for each, time in record.entered.items() if count[each] > 1}
        for step, late in _late(record, shared, first).items():
            excesses.setdefault(step, {})[rank] = _length(late)
    steps = set[int].intersection(*(set(record.ends) for record in records.values())) if records else set[int]()
    for step in sorted(steps & excesses.keys()):
        if step > after and step - 1 in steps:
            length = median([record.ends[step] - record.ends[step - 1] for record in records.values()])
            excess = {rank: min(length, excesses[step].get(rank, 0.0)) for rank in records}
            least = length - max(excess.values())
            end = max(record.ends[step] for record in records.values())
            yield step, end, {rank: least + late for rank, late in excess.items()}


def _late(
    record: Record, shared: Mapping[tuple[str, int], float], first: Mapping[tuple[str, int], tuple[float, Record]]
) -> dict[int, list[tuple[float, float]]]:
    """Return for each step the spans of time in which other ranks were in an operation and this one was not yet."""
    numbers, times = list(record.ends), list(record.ends.values())
    steps: dict[int, list[tuple[float, float]]] = {}
    for operation, time in shared.items():
        place = bisect_left(times, time)
        if place < len(times):
            begin, other = first[operation]
            # Clocks of one host are one clock.
            begin += 0.0 if other.host == record.host else other.error + record.error
            steps.setdefault(numbers[place], []).append((begin, time))
    return steps


def _length(spans: list[tuple[float, float]]) -> float:
    """Return the time that spans cover together."""
    length, end = 0.0, float("-inf")
    for begin, last in sorted(spans):
        length += max(0.0, last - max(begin, end))
        end = max(end, last)
    return length
