"""`SMP_TIMELINE=path`: what each rank ran when, in one Chrome trace for the job, as the simulator writes it too.

Every rank keeps its own last stretches of work, by its own clock. At the end of the job they are gathered on rank 0, by
its clock, and written there. A step that fails may be the last thing its ranks do, so each then writes what it has
into a file of its own at once: `timeline.rank1.json` beside `timeline.json`.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.pipeline.trace import Event, write_trace

VARIABLE = "SMP_TIMELINE"

# How often a rank asks rank 0 for its time.
PINGS = 20
# Of each rank; as text they must fit into one value of torch's store, which takes 8 MiB.
_KEPT_EVENTS = 50_000


class Timeline:
    """The stretches of work of this rank, the last 50,000; `ahead_s` is what rank 0's clock shows more than ours."""

    def __init__(self, path: Path, rank: int, ahead_s: float) -> None:
        self.path = path
        self.rank = rank
        self._ahead_s = ahead_s
        self._events: deque[Event] = deque(maxlen=_KEPT_EVENTS)

    def note(self, step: int, what: str, microbatch: int, start_s: float, end_s: float) -> None:
        """Note a stretch of work: its step, phase and microbatch, its start and end by our clock."""
        start_s, end_s = start_s + self._ahead_s, end_s + self._ahead_s
        self._events.append(Event(self.rank, what, microbatch, start_s, end_s, step))

    def write_own(self) -> Path:
        """Write what this rank has into a file of its own, and return its path."""
        path = self.path.with_name(f"{self.path.stem}.rank{self.rank}{self.path.suffix}")
        write_trace(path, self._events, name="real")
        return path

    def told(self) -> bytes:
        """Return what this rank has, for rank 0 to `write`."""
        return json.dumps(list(self._events)).encode()

    def write(self, others: Iterable[bytes]) -> None:
        """Write the trace of this rank and of others, which `told` it."""
        events = list(self._events)
        for told in others:
            events += [Event(*row) for row in json.loads(told)]
        write_trace(self.path, events, name="real")


def expanded(asked: str) -> Path:
    """Return the path with its variables expanded: `$SM_OUTPUT_DATA_DIR/timeline.json`."""
    return Path(os.path.expandvars(asked))


def file_for(asked: str) -> Path:
    """Return the file that was asked for, in a folder that is there.

    Raises `ParallelError` when the folder cannot be made.
    """
    path = expanded(asked)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ParallelError(f"{VARIABLE}={asked}: {error}. Name a file in a folder that can be written.") from error
    return path


def ahead_s(ping: Callable[[], float]) -> float:
    """Return how much another clock shows more than ours, by the ping that was fastest; `ping` asks for its time."""
    fastest_s, found_s = math.inf, 0.0
    for _ in range(PINGS):
        sent_s = time.monotonic()
        theirs_s = ping()
        back_s = time.monotonic()
        if back_s - sent_s < fastest_s:
            fastest_s, found_s = back_s - sent_s, theirs_s - (sent_s + back_s) / 2
    # Ranks of one host read the same clock, and what is left is noise.
    return found_s if abs(found_s) > fastest_s else 0.0
