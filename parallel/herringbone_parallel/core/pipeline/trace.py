"""Writes and reads timelines of simulated and of real steps as Chrome traces, which Perfetto opens.

    write_trace("predicted.json", [event for rank in simulation.events for event in rank])
    print(side_by_side(read_trace("predicted.json"), read_trace("real.json")))

Events hold seconds on any clock that the ranks share; traces hold microseconds, as the format requires. One trace has
one clock: join the events of several ranks' traces before you compare them.
Source of the format: "Trace Event Format", the Catapult project. This file writes its phases "X" (a complete event) and
"M" (metadata).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from herringbone_contract.errors import ParallelError

_MICROSECONDS = 1e6


class Event(NamedTuple):
    """The work of one microbatch on one rank in one phase (forward, backward, weight), from start to end in seconds."""

    rank: int
    phase: str
    microbatch: int
    start_s: float
    end_s: float
    step: int = 0


def chrome_trace(events: Iterable[Event], *, name: str = "pipeline") -> dict[str, Any]:
    """Return the events as the JSON object that Perfetto and chrome://tracing open, with one process per rank.

    >>> chrome_trace([Event(0, "forward", 3, 0.5, 0.75)])["traceEvents"][-1]
    {'name': 'F3', 'cat': 'forward', 'ph': 'X', 'pid': 0, 'tid': 0, 'ts': 500000.0, 'dur': 250000.0, \
'args': {'microbatch': 3, 'step': 0}}
    """
    events = list(events)
    rows = [
        {"name": "process_name", "ph": "M", "pid": rank, "tid": 0, "args": {"name": f"{name} rank {rank}"}}
        for rank in sorted({event.rank for event in events})
    ]
    # A rank runs one microbatch at a time, so its events never overlap and fit on one track (tid 0).
    rows += [
        {
            "name": f"{event.phase[:1].upper()}{event.microbatch}",
            "cat": event.phase,
            "ph": "X",
            "pid": event.rank,
            "tid": 0,
            "ts": event.start_s * _MICROSECONDS,
            "dur": (event.end_s - event.start_s) * _MICROSECONDS,
            "args": {"microbatch": event.microbatch, "step": event.step},
        }
        for event in events
    ]
    return {"traceEvents": rows, "displayTimeUnit": "ms"}


def write_trace(path: str | Path, events: Iterable[Event], *, name: str = "pipeline") -> None:
    """Write the events as a Chrome trace, one event per line."""
    trace = chrome_trace(events, name=name)
    rows = ",\n".join(json.dumps(row) for row in trace["traceEvents"])
    unit = json.dumps(trace["displayTimeUnit"])
    Path(path).write_text(f'{{"displayTimeUnit": {unit}, "traceEvents": [\n{rows}\n]}}\n', encoding="utf-8")


def read_trace(path: str | Path) -> list[Event]:
    """Return the events of a trace that `write_trace` wrote, in the order of the file; skip rows of other phases.

    Raises `ParallelError` when the file is missing or is no such trace.
    """
    try:
        trace = json.loads(Path(path).read_text(encoding="utf-8"))
        return [_event(row) for row in trace["traceEvents"] if row["ph"] == "X"]
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as failure:
        raise ParallelError(
            f"{path} cannot be read as a timeline ({type(failure).__name__}: {failure}). Give a file that SMP_TIMELINE"
            " or the simulator wrote. A job that was killed may have left an incomplete file."
        ) from failure


def _event(row: dict[str, Any]) -> Event:
    start = row["ts"] / _MICROSECONDS
    end = start + row["dur"] / _MICROSECONDS
    return Event(row["pid"], row["cat"], row["args"]["microbatch"], start, end, row["args"]["step"])


def span_s(events: Iterable[Event]) -> float:
    """Return the seconds from the first start to the last end; 0 without events."""
    events = list(events)
    if not events:
        return 0.0
    return max(event.end_s for event in events) - min(event.start_s for event in events)


def idle_fractions(events: Sequence[Event]) -> dict[int, float]:
    """Return the fraction of the span in which each rank ran nothing, by rank.

    >>> idle_fractions([Event(0, "forward", 0, 0.0, 3.0), Event(1, "forward", 0, 3.0, 4.0)])
    {0: 0.25, 1: 0.75}
    """
    span = span_s(events)
    busy: dict[int, float] = {}
    for event in events:
        busy[event.rank] = busy.get(event.rank, 0.0) + event.end_s - event.start_s
    return {rank: 1 - busy[rank] / span if span else 0.0 for rank in sorted(busy)}


def side_by_side(predicted: Sequence[Event], real: Sequence[Event]) -> str:
    """Return a text table that compares a predicted with a real step: its seconds, and the idle fraction of each rank.

    The last column is the difference: relative to the real step for seconds, in percentage points for idle fractions.
    A dash marks a rank that one of the two does not have.
    """
    step_s = span_s(predicted), span_s(real)
    difference = f"{step_s[0] / step_s[1] - 1:+.1%}" if step_s[1] else "-"
    lines = [
        f"{'':<12}{'predicted':>12}{'real':>12}{'difference':>12}",
        f"{'step':<12}{step_s[0]:>10.4f} s{step_s[1]:>10.4f} s{difference:>12}",
    ]
    idle = idle_fractions(predicted), idle_fractions(real)
    for rank in sorted(set(idle[0]) | set(idle[1])):
        cells = [f"{side[rank]:.1%}" if rank in side else "-" for side in idle]
        both = rank in idle[0] and rank in idle[1]
        points = f"{100 * (idle[0][rank] - idle[1][rank]):+.1f} pt" if both else "-"
        lines.append(f"{f'idle, rank {rank}':<12}{cells[0]:>12}{cells[1]:>12}{points:>12}")
    return "\n".join(lines)
