"""Training steps of a global batch in MXNet: add up the gradients of its parts, and update at a scheduled rate."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from typing import Any

import horovod.mxnet as hvd
import mxnet as mx
from mxnet import autograd, gluon

from common.for_mxnet.optimizers import LAMB, LARS, AdamW, RAdam
from common.for_mxnet.world import World
from common.order import Order
from common.settings import learning_rate, schedule_of

_ADAPTIVE = {"adamw": AdamW, "radam": RAdam, "lamb": LAMB}


def build_trainer(settings: argparse.Namespace, world: World, model: gluon.Block) -> gluon.Trainer:
    """Build a trainer with the optimizer that the settings name. Raises `ParallelError` if the ranks' weights differ.

    Biases and normalisations have no weight decay.
    """
    weights = model.collect_params()
    for name, weight in weights.items():
        if name.endswith(("bias", "beta", "gamma")):
            weight.wd_mult = 0.0
        # A step adds up the gradients of its parts.
        if weight.grad_req == "write":
            weight.grad_req = "add"
    rate, decay = learning_rate(settings), settings.weight_decay
    if settings.optimizer in _ADAPTIVE:
        optimizer = _ADAPTIVE[settings.optimizer](learning_rate=rate, wd=decay)
    elif settings.optimizer == "lars":
        optimizer = LARS(learning_rate=rate, wd=decay, trust=settings.trust)
    else:
        optimizer = mx.optimizer.SGD(learning_rate=rate, wd=decay, momentum=0.9)
    if world.is_launched:
        return hvd.DistributedTrainer(weights, optimizer)
    return gluon.Trainer(weights, optimizer, kvstore=None)


class Updates:
    """Runs the training steps of the epochs that `settings` and `order` describe, starting with the first one.

    updates = Updates(settings, world, model, build_trainer(settings, world, model), order)
    for step in order.epoch(0, rank=world.rank):
        loss = updates.step((batches[part] for part in step), loss_of)
    """

    def __init__(
        self, settings: argparse.Namespace, world: World, model: gluon.Block, trainer: gluon.Trainer, order: Order
    ) -> None:
        self._world, self._trainer, self._clip = world, trainer, settings.clip
        self._weights = [weight for weight in model.collect_params().values() if weight.grad_req != "null"]
        self._factor = schedule_of(settings).by_steps(order.steps_per_epoch)
        self._rate, self._steps = learning_rate(settings), 0

    def step(self, parts: Iterable[Any], loss_of: Callable[[Any], Any]) -> float:
        """Run one step on this rank's parts. Return the mean loss of all parts of all ranks."""
        losses = []
        for part in parts:
            with autograd.record():
                loss = loss_of(part)
            loss.backward()
            losses.append(loss)
        # Once a step, not once a part: the trainer sums what the parts have added up.
        self._trainer.allreduce_grads()
        if self._clip is not None:
            # The gradients are sums over the parts; the update divides them by the number of parts.
            clip([weight.grad() for weight in self._weights], self._clip * len(losses))
        self._trainer.set_learning_rate(self._rate * self._factor(self._steps))
        self._trainer.update(len(losses))
        for weight in self._weights:
            weight.zero_grad()
        self._steps += 1
        total = sum(float(loss.asscalar()) for loss in losses)
        return self._world.total(total)[0] / (len(losses) * self._world.ranks)


def clip(gradients: list[Any], limit: float) -> None:
    """Scale gradients so that their norm is at most `limit`. Gluon's own function fails for fp64."""
    size = float(mx.nd.add_n(*(mx.nd.square(gradient).sum() for gradient in gradients)).sqrt().asscalar())
    if size > limit:
        for gradient in gradients:
            gradient *= limit / size
