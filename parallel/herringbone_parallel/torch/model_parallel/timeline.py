"""`SMP_TIMELINE` for torch: what the ranks have travels to rank 0 through torch's store."""

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
from herringbone_parallel.core.pipeline.schedule import BACKWARD, FORWARD, WEIGHT
from herringbone_parallel.timeline import VARIABLE, file_for
from herringbone_parallel.torch.model_parallel.runtime import run_token

_NAMES = {run_token.FORWARD: FORWARD, run_token.BACKWARD: BACKWARD, run_token.WEIGHT: WEIGHT}
_GATHER_SECONDS = 5


class Timeline(timeline.Timeline):
    """The stretches of work of this rank, handed in through torch's store."""

    def __init__(self, path: Path, rank: int, size: int, ahead_s: float) -> None:
        super().__init__(path, rank, ahead_s)
        self._size = size

    def of_step(self, step: int) -> Callable[[int, int, float, float], None]:
        """Return what notes a stretch of work in this step: its phase, microbatch, start and end by our clock."""
        return lambda phase, *stretch: self.note(step, _NAMES[phase], *stretch)

    def hand_in(self, store: Any) -> None:
        """Give rank 0 what there is; on rank 0, write the trace of all ranks that hand something in within seconds."""
        if self.rank != 0:
            try:
                store.set(_key(self.rank), self.encoded())
            except RuntimeError as error:
                warnings.warn(f"{VARIABLE}: rank 0 is gone ({error}); wrote {self.write_own()}", stacklevel=2)
            return
        others, missing = [], []
        deadline = time.monotonic() + _GATHER_SECONDS
        for rank in range(1, self._size):
            try:
                store.wait([_key(rank)], timedelta(seconds=max(0.1, deadline - time.monotonic())))
                others.append(store.get(_key(rank)))
            except RuntimeError:
                missing.append(rank)
        self.write(others)
        if missing:
            warnings.warn(f"{self.path} lacks the ranks {missing}, which handed nothing in", stacklevel=2)


def open_timeline(rank: int, size: int, environ: Mapping[str, str]) -> Timeline | None:
    """Return the timeline that rank 0's environment asks for, None if it does not; every rank of the job must call it.

    Raises `ParallelError` when its folder cannot be made.
    """
    asked: list[str | None] = [environ.get(VARIABLE) if rank == 0 else None]
    if asked[0]:
        file_for(asked[0])
    if size > 1:
        dist.broadcast_object_list(asked, src=0, device=torch.device("cpu"))
    if not asked[0]:
        return None
    ahead_s = _ahead_s(rank, size)
    return Timeline(timeline.expanded(asked[0]), rank, size, ahead_s)


def _key(rank: int) -> str:
    return f"herringbone/timeline/{rank}"


def _ahead_s(rank: int, size: int) -> float:
    """Return how much rank 0's clock shows more than ours; 0 on one host."""
    word = torch.zeros(1, dtype=torch.float64)

    def ping() -> float:
        dist.send(word, 0)
        dist.recv(word, 0)
        return float(word)

    if rank != 0:
        return timeline.ahead_s(ping)
    for peer in range(1, size):
        for _ in range(timeline.PINGS):
            dist.recv(word, peer)
            word[0] = time.monotonic()
            dist.send(word, peer)
    return 0.0
