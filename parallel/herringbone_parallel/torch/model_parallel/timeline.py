"""`SMP_TIMELINE` for torch: the ranks send their stretches of work to rank 0 through torch's store."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from herringbone_parallel import timeline
from herringbone_parallel.live_timeline import LiveTimeline, StageWork
from herringbone_parallel.timeline import VARIABLE, file_for
from herringbone_parallel.torch.model_parallel.runtime.phases import Phase

_GATHER_SECONDS = 5


Note = Callable[[Phase, int, float, float], None]


class Timeline(timeline.Timeline):
    """The stretches of work of this rank, sent through torch's store."""

    def __init__(self, path: Path, rank: int, size: int, ahead_s: float) -> None:
        super().__init__(path, rank, ahead_s)
        self._size = size

    def of_step(self, step: int) -> Note:
        """Return a function that notes a stretch of this step: its phase, microbatch, start and end by this clock."""
        return lambda phase, *stretch: self.note(step, phase.name.lower(), *stretch)

    def hand_in(self, store: Any) -> None:
        """Send this rank's stretches to rank 0. On rank 0, write the trace of all ranks that send theirs in time."""
        if self.rank != 0:
            try:
                store.set(_key(self.rank), self.encoded())
            except RuntimeError as error:
                warnings.warn(f"{VARIABLE}: rank 0 is gone ({error}); wrote {self.write_own()}", stacklevel=2)
            return
        others, missing = [], []
        # One deadline for all ranks: the job must not wait for each lost rank in turn.
        deadline = time.monotonic() + _GATHER_SECONDS
        for rank in range(1, self._size):
            try:
                store.wait([_key(rank)], timedelta(seconds=max(0.1, deadline - time.monotonic())))
                others.append(store.get(_key(rank)))
            except RuntimeError:
                missing.append(rank)
        self.write(others)
        if missing:
            warnings.warn(f"{self.path} lacks the ranks {missing}, which sent nothing", stacklevel=2)


def open_timeline(rank: int, size: int, environ: Mapping[str, str]) -> Timeline | None:
    """Return the timeline that rank 0's environment requests, or None. Every rank of the job must call it.

    Raises `ParallelError` when the folder of its file cannot be made.
    """
    requested: list[str | None] = [environ.get(VARIABLE) if rank == 0 else None]
    if requested[0]:
        file_for(requested[0])
    if size > 1:
        dist.broadcast_object_list(requested, src=0, device=torch.device("cpu"))
    if not requested[0]:
        return None
    ahead_s = _ahead_s(rank, size)
    return Timeline(timeline.expanded(requested[0]), rank, size, ahead_s)


def recorder(of_step: Note | None, live: LiveTimeline | None, work: StageWork | None) -> Note | None:
    """Return what notes each stretch of a step for all who want to know, None if nobody does."""
    notes = [] if of_step is None else [of_step]
    if live is not None:
        notes.append(lambda phase, *stretch: live.note(phase.name.lower(), *stretch))
    if work is not None:
        notes.append(work.note)

    def record(phase: Phase, *stretch: Any) -> None:
        for note in notes:
            note(phase, *stretch)

    return record if notes else None


def _key(rank: int) -> str:
    return f"herringbone/timeline/{rank}"


def _ahead_s(rank: int, size: int) -> float:
    """Return the seconds by which rank 0's clock is ahead of this rank's; 0 on one host."""
    word = torch.zeros(1, dtype=torch.float64)

    def ping() -> float:
        dist.send(word, 0)
        dist.recv(word, 0)
        return float(word)

    if rank != 0:
        return timeline.ahead_s(ping)
    # One peer after another, because two pings at once would delay each other.
    for peer in range(1, size):
        for _ in range(timeline.PINGS):
            dist.recv(word, peer)
            word[0] = time.monotonic()
            dist.send(word, peer)
    return 0.0
