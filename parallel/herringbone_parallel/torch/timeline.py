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
import warnings
from collections import deque
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from herringbone_parallel.core.schedule import BACKWARD, FORWARD, WEIGHT
from herringbone_parallel.core.timeline import Event, write_trace
from herringbone_parallel.torch import baton
from herringbone_spec.errors import ParallelError

VARIABLE = "SMP_TIMELINE"

# Of each rank; as text they must fit into one value of torch's store, which takes 8 MiB.
_KEPT_EVENTS = 50_000
_NAMES = {baton.FORWARD: FORWARD, baton.BACKWARD: BACKWARD, baton.WEIGHT: WEIGHT}
_PINGS = 20
_GATHER_SECONDS = 5


class Timeline:
    """The stretches of work of this rank, the last 50,000; `ahead_s` is what rank 0's clock shows more than ours."""

    def __init__(self, path: Path, rank: int, size: int, ahead_s: float) -> None:
        self._path = path
        self._rank = rank
        self._size = size
        self._ahead_s = ahead_s
        self._events: deque[Event] = deque(maxlen=_KEPT_EVENTS)

    def of_step(self, step: int) -> Callable[[int, int, float, float], None]:
        """Return what notes a stretch of work in this step: its phase, microbatch, start and end by our clock."""
        return partial(self._note, step)

    def write_own(self) -> Path:
        """Write what this rank has into a file of its own, and return its path."""
        path = self._path.with_name(f"{self._path.stem}.rank{self._rank}{self._path.suffix}")
        write_trace(path, self._events, name="real")
        return path

    def hand_in(self, store: Any) -> None:
        """Give rank 0 what there is; on rank 0, write the trace of all ranks that hand something in within seconds."""
        if self._rank != 0:
            try:
                store.set(_key(self._rank), json.dumps(list(self._events)))
            except RuntimeError as error:
                warnings.warn(f"{VARIABLE}: rank 0 is gone ({error}); wrote {self.write_own()}", stacklevel=2)
            return
        events, missing = list(self._events), []
        deadline = time.monotonic() + _GATHER_SECONDS
        for rank in range(1, self._size):
            try:
                store.wait([_key(rank)], timedelta(seconds=max(0.1, deadline - time.monotonic())))
                events += [Event(*row) for row in json.loads(store.get(_key(rank)))]
            except RuntimeError:
                missing.append(rank)
        write_trace(self._path, events, name="real")
        if missing:
            warnings.warn(f"{self._path} lacks the ranks {missing}, which handed nothing in", stacklevel=2)

    def _note(self, step: int, phase: int, microbatch: int, start_s: float, end_s: float) -> None:
        start_s, end_s = start_s + self._ahead_s, end_s + self._ahead_s
        self._events.append(Event(self._rank, _NAMES[phase], microbatch, start_s, end_s, step))


def open_timeline(rank: int, size: int, environ: Mapping[str, str]) -> Timeline | None:
    """Return the timeline that rank 0's environment asks for, None if it does not; every rank of the job must call it.

    Variables in the path are expanded: `$SM_OUTPUT_DATA_DIR/timeline.json`. Raises `ParallelError` when its folder
    cannot be made.
    """
    asked: list[str | None] = [environ.get(VARIABLE) if rank == 0 else None]
    if asked[0]:
        path = Path(os.path.expandvars(asked[0]))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ParallelError(
                f"{VARIABLE}={asked[0]}: {error}. Name a file in a folder that can be written."
            ) from error
    if size > 1:
        dist.broadcast_object_list(asked, src=0, device=torch.device("cpu"))
    if not asked[0]:
        return None
    ahead_s = _ahead_s(rank, size)
    return Timeline(Path(os.path.expandvars(asked[0])), rank, size, ahead_s)


def _key(rank: int) -> str:
    return f"herringbone/timeline/{rank}"


def _ahead_s(rank: int, size: int) -> float:
    """Return how much rank 0's clock shows more than ours, by the ping that was fastest; 0 on one host."""
    word = torch.zeros(1, dtype=torch.float64)
    if rank == 0:
        for peer in range(1, size):
            for _ in range(_PINGS):
                dist.recv(word, peer)
                word[0] = time.monotonic()
                dist.send(word, peer)
        return 0.0
    fastest_s, ahead_s = math.inf, 0.0
    for _ in range(_PINGS):
        sent_s = time.monotonic()
        dist.send(word, 0)
        dist.recv(word, 0)
        back_s = time.monotonic()
        if back_s - sent_s < fastest_s:
            fastest_s, ahead_s = back_s - sent_s, float(word) - (sent_s + back_s) / 2
    # Ranks of one host read the same clock, and what is left is noise.
    return ahead_s if abs(ahead_s) > fastest_s else 0.0
