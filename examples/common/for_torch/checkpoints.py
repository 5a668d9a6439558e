"""Checkpoints in the middle of an epoch: save a training every few steps, and continue after the newest checkpoint."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from common.for_torch.world import World
from common.loop import Place, Training
from herringbone_parallel.torch.position import api as position


class Checkpoints:
    """Saves a training after every `every` steps, and continues it at its `place` when a job is resumed.

    `training.parts` are the parts that the next step depends on. An epoch's order depends on the seed and the epoch, so
    the place is a number of steps. Every rank makes a `Checkpoints`, before the first step.
    """

    def __init__(self, training: Training, world: World, place: Place, every: int) -> None:
        statistics = (
            {"statistics": _Statistics(training.model, world)}
            if next(training.model.buffers(), None) is not None
            else {}
        )
        self._training = position.Training(**training.parts, **statistics, place=place)
        self._place, self._every = place, every
        self._pending: Any = None
        self._training.resume()

    def completed(self) -> None:
        """Save after a completed step, if it is time."""
        if self._place.step % self._every == 0:
            self._pending = self._training.save(f"step-{self._place.step}", in_background=True)

    def finish(self) -> None:
        """Wait for the last save."""
        if self._pending is not None:
            self._pending.result()


class _Statistics:
    """The buffers of all ranks' models, [rank, value]. Ranks have BatchNorm statistics of their own during an epoch."""

    def __init__(self, model: nn.Module, world: World) -> None:
        self._buffers, self._world = [*model.buffers()], world

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the buffers of all ranks; every rank calls."""
        mine = torch.cat([buffer.cpu().double().flatten() for buffer in self._buffers])
        rows = torch.zeros(self._world.ranks, len(mine), dtype=torch.float64)
        rows[self._world.rank] = mine
        if self._world.is_launched:
            dist.all_reduce(rows)
        return {"rows": rows}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Load this rank's buffers; on another number of ranks, the mean of all."""
        rows = state["rows"]
        row = rows[self._world.rank] if len(rows) == self._world.ranks else rows.mean(0)
        for buffer, values in zip(self._buffers, row.split([one.numel() for one in self._buffers]), strict=True):
            buffer.copy_(values.view_as(buffer))
