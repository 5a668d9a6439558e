"""Records the work of every rank for `SMP_TIMELINE=path`, as one Chrome trace for the job.

Every rank keeps its last events, in rank 0's time. At the end of the job rank 0 gathers and writes them. A step that
fails may be the last thing that its ranks do, so then every rank writes its own events at once to a file of its own:
`timeline.rank1.json` next to `timeline.json`. The simulator writes the same format.
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

# The number of times that a rank asks rank 0 for its time; the fastest answer has the smallest error.
PINGS = 20
# Events of one rank: as text they must fit into one value of torch's store, which takes at most 8 MiB.
_KEPT_EVENTS = 50_000


class Timeline:
    """The last 50,000 events of this rank.

        timeline = Timeline(path, rank=1, ahead_s=0.002)
        timeline.note(step, "forward", microbatch, start_s, end_s)

    `ahead_s` is rank 0's clock minus this rank's, in seconds.
    """

    def __init__(self, path: Path, rank: int, ahead_s: float) -> None:
        self.path = path
        self.rank = rank
        self._ahead_s = ahead_s
        self._events: deque[Event] = deque(maxlen=_KEPT_EVENTS)

    def note(self, step: int, phase: str, microbatch: int, start_s: float, end_s: float) -> None:
        """Add an event, with its start and end by this rank's clock."""
        start_s, end_s = start_s + self._ahead_s, end_s + self._ahead_s
        self._events.append(Event(self.rank, phase, microbatch, start_s, end_s, step))

    def write_own(self) -> Path:
        """Write this rank's events to a file of its own, and return its path."""
        path = self.path.with_name(f"{self.path.stem}.rank{self.rank}{self.path.suffix}")
        write_trace(path, self._events, name="real")
        return path

    def encoded(self) -> bytes:
        """Return this rank's events as bytes, for rank 0 to `write`."""
        return json.dumps(list(self._events)).encode()

    def write(self, others: Iterable[bytes]) -> None:
        """Write the trace of this rank and of others, whose events are `encoded`."""
        events = list(self._events)
        for encoded in others:
            events += [Event(*row) for row in json.loads(encoded)]
        write_trace(self.path, events, name="real")


def expanded(setting: str) -> Path:
    """Return the path with environment variables expanded, such as `$SM_OUTPUT_DATA_DIR/timeline.json`."""
    return Path(os.path.expandvars(setting))


def file_for(setting: str) -> Path:
    """Return the file that the variable names, and make its folder.

    Raises `ParallelError` when the folder cannot be made.
    """
    path = expanded(setting)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ParallelError(f"{VARIABLE}={setting}: {error}. Name a file in a folder that can be written.") from error
    return path


def ahead_s(ping: Callable[[], float]) -> float:
    """Return another clock minus this one in seconds, by the fastest ping; `ping` returns the other clock's time."""
    fastest_s, difference_s = math.inf, 0.0
    for _ in range(PINGS):
        sent_s = time.monotonic()
        theirs_s = ping()
        back_s = time.monotonic()
        if back_s - sent_s < fastest_s:
            # The other clock was read about halfway, so the error is at most half of the round trip.
            fastest_s, difference_s = back_s - sent_s, theirs_s - (sent_s + back_s) / 2
    # Ranks of one host read the same clock: a difference within the round trip is noise.
    return difference_s if abs(difference_s) > fastest_s else 0.0
