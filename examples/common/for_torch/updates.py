"""Training steps of a global batch: add up the gradients of its parts, clip them, and update at a scheduled rate."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch import nn

from common.for_torch.world import World
from common.order import Order
from common.settings import learning_rate, schedule_of
from herringbone_parallel.torch.recipes.api import LAMB, LARS, Precision, weight_groups

Part = TypeVar("Part")


def build_optimizer(settings: argparse.Namespace, model: nn.Module) -> torch.optim.Optimizer:
    """Build the optimizer that the settings name."""
    rate, groups = learning_rate(settings), weight_groups(model, settings.weight_decay)
    if settings.optimizer == "lars":
        return LARS(groups, lr=rate, trust=settings.trust)
    if settings.optimizer == "lamb":
        return LAMB(groups, lr=rate)
    # Only LARS and LAMB know the key `adapt` of a group.
    plain = [{key: value for key, value in group.items() if key != "adapt"} for group in groups]
    if settings.optimizer == "radam":
        return torch.optim.RAdam(plain, lr=rate, decoupled_weight_decay=True)
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(plain, lr=rate)
    return torch.optim.SGD(plain, lr=rate, momentum=0.9)


class Updates:
    """Runs the training steps of the epochs that `settings` and `order` describe, starting with the first one.

    updates = Updates(settings, world, model, build_optimizer(settings, model), order)
    for step in order.epoch(0, rank=world.rank):
        loss = updates.step(step, lambda part: criterion(parallel(images[part]), labels[part]))
    """

    def __init__(
        self,
        settings: argparse.Namespace,
        world: World,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        order: Order,
    ) -> None:
        self._world, self._model, self._optimizer, self._clip = world, model, optimizer, settings.clip
        # Dropout draws other numbers on each rank, and the same ones in each job.
        torch.manual_seed(1000 * settings.seed + world.rank)
        self._factor = schedule_of(settings).by_steps(order.steps_per_epoch)
        self._rate, self._steps = learning_rate(settings), 0
        self._precision = Precision(settings.precision, world.device)
        # In a job, the backend averages over parts and ranks. Without a launcher there is no backend: average here.
        self._share = 1.0 if world.is_launched else 1.0 / order.parts_per_step

    @property
    def parts(self) -> dict[str, Any]:
        """Everything that the next step depends on, as parts of a checkpoint."""
        return {"model": self._model, "optimizer": self._optimizer, "updates": self}

    def state_dict(self) -> dict[str, Any]:
        """Return the place in the schedule, and the state of fp16's scale."""
        return {"steps": self._steps, "scaler": self._precision.scaler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with such a state."""
        self._steps = state["steps"]
        self._precision.scaler.load_state_dict(state["scaler"])

    def step(self, parts: Iterable[Part], loss_of: Callable[[Part], torch.Tensor]) -> float:
        """Run one step on this rank's parts. Return the mean loss of all parts of all ranks."""
        losses = []
        for part in parts:
            with self._precision.autocast():
                loss = loss_of(part)
            # The backend sums over ranks in the backward of the step's last part only (aggregation_frequency).
            self._precision.backward(loss * self._share)
            losses.append(loss.detach())
        if self._clip is not None:
            self._precision.clip(self._optimizer, self._model.parameters(), self._clip)
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate * self._factor(self._steps)
        self._precision.step(self._optimizer)
        self._optimizer.zero_grad()
        self._steps += 1
        return self._world.total(torch.stack(losses).sum())[0] / (len(losses) * self._world.ranks)
