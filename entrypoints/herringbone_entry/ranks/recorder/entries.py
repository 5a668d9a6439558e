"""Give the supervisor the times at which this rank has entered the collective operations of its last steps.

As in `flight_record`, the thread that listens for orders carries this out.
"""

from __future__ import annotations

import sys
import time
from bisect import bisect_left
from typing import Any

from herringbone_entry.ranks.recorder import flight_record

# About so many collective operations of a step are reported, which all ranks choose by the operations' numbers.
_MAX_OF_STEP = 16
_reported: tuple[int, int] | None = None


def obey(order: dict[str, Any]) -> dict[str, Any]:
    """Return the last `order["steps"]` steps of this rank, `{}` if it has no new one or nothing is recorded.

    `origin` (seconds since 1970) is the time of the first of `ends`, the ends of steps; `number` is that one's number.
    `entered` maps a process group to [number of the operation, time]. Times are microseconds since `origin`. `cost` is
    the CPU time of this look in seconds.
    """
    global _reported
    began = time.thread_time()
    noted = sys.modules.get("herringbone_entry.ranks.recorder.step_times")
    # A look at a job that hangs must not make it look busy.
    if noted is None or not noted.ends or noted.ends[-1] == _reported:
        return {}
    _reported = noted.ends[-1]
    counted = sys.modules.get("herringbone_contract.events.steps")
    entered = sorted(counted.entered if counted is not None and counted.entered else _collectives())
    steps = last_steps(list(noted.ends), entered, order["steps"])
    return {**steps, "cost": time.thread_time() - began} if steps else {}


def _collectives() -> list[tuple[int, str, int]]:
    return [
        (entry["time_created_ns"], flight_record.group_of(entry), entry["collective_seq_id"])
        for entry in flight_record.read()[0]
        if not entry.get("is_p2p") and entry.get("time_created_ns")
    ]


def last_steps(ends: list[tuple[int, int]], entered: list[tuple[int, str, int]], steps: int) -> dict[str, Any]:
    """Return the last steps whose operations are all still recorded; both lists are in the order of their times.

    >>> last_steps([(1, 1_000), (2, 5_000), (3, 9_000)], [(2_000, "default_pg", 7), (6_000, "default_pg", 8)], 1)
    {'origin': 5e-06, 'number': 2, 'ends': [0, 4], 'entered': {'default_pg': [[8, 1]]}}
    """
    # The recorder keeps the newest operations: of an older step some may be missing.
    ends = [end for end in ends if entered and end[1] >= entered[0][0]][-steps - 1 :]
    if len(ends) < 2:
        return {}
    number, origin = ends[0]
    times = [moment for _, moment in ends]
    of_steps: list[list[tuple[int, str, int]]] = [[] for _ in ends]
    for entry in entered:
        step = bisect_left(times, entry[0])
        if 0 < step < len(times):
            of_steps[step].append(entry)
    groups: dict[str, list[list[int]]] = {}
    for entries in of_steps:
        stride = 1 << max(0, (len(entries) - 1) // _MAX_OF_STEP).bit_length()
        for place, (moment, group, seq) in enumerate(entries):
            if place == 0 or seq % stride == 0:
                groups.setdefault(group, []).append([seq, (moment - origin) // 1000])
    return {
        "origin": origin / 1e9,
        "number": number,
        "ends": [(moment - origin) // 1000 for moment in times],
        "entered": groups,
    }
