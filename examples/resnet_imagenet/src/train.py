"""Trains a ResNet on labelled images, on any number of ranks; all settings are hyperparameters."""

from __future__ import annotations

import argparse
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import torch
from common.order import Order
from common.settings import add_settings, truth
from common.world import World, join, leave
from images import Images
from resnet import MODELS
from torch import nn
from torch.utils.data import DataLoader

from herringbone_parallel.recipes import (
    LARS,
    Precision,
    Schedule,
    average_batch_norm,
    require_equal,
    scale_learning_rate,
    seeded,
    tune_batch_norm,
    weight_groups,
)
from herringbone_parallel.run_log import RunLog


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_settings(parser, optimizers=("sgd", "lars"))
    parser.add_argument("--model", choices=sorted(MODELS), default="resnet50")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--augment", type=truth, default=True, help="crop and mirror at random")
    parser.add_argument("--smoothing", type=float, default=0.0, help="of labels")
    parser.add_argument("--tune-batch-norm", type=truth, default=False, help="its momentum, for all ranks' forwards")
    parser.add_argument("--bn-base-batch", type=int, default=32, help="what BatchNorm's momentum of 0.1 is for")
    parser.add_argument("--trust", type=float, default=0.001, help="of LARS")
    parser.add_argument("--decay", choices=["polynomial", "cosine", "constant"], default="polynomial")
    parser.add_argument("--workers", type=int, default=0, help="processes that read images, for each rank")
    return parser.parse_known_args(arguments)[0]


def build(settings: argparse.Namespace, classes: int, colours: int, ranks: int) -> nn.Module:
    """Make the same model on every rank, from the seed."""
    with seeded(settings.seed):
        model = MODELS[settings.model](classes, colours)
    if settings.tune_batch_norm:
        tune_batch_norm(model, batch=settings.rank_batch * ranks, base_batch=settings.bn_base_batch)
    require_equal(model)
    return model


def build_optimizer(settings: argparse.Namespace, model: nn.Module) -> torch.optim.Optimizer:
    base = settings.base_batch or settings.global_batch
    rate = scale_learning_rate(settings.lr, batch=settings.global_batch, base_batch=base, rule=settings.scaling)
    groups = weight_groups(model, settings.weight_decay)
    if settings.optimizer == "lars":
        return LARS(groups, lr=rate, trust=settings.trust)
    # `adapt` is a word of LARS.
    plain = [{key: value for key, value in group.items() if key != "adapt"} for group in groups]
    return torch.optim.SGD(plain, lr=rate, momentum=0.9)


class Training:
    """One run: `epochs` trains, `accuracy` evaluates, both on all ranks together."""

    def __init__(self, settings: argparse.Namespace, world: World, folder: Path, test: Path) -> None:
        self._settings, self._world = settings, world
        self.data = Images(folder, size=settings.image_size, seed=settings.seed if settings.augment else None)
        self._test = Images(test, size=settings.image_size)
        batches = {"global_batch": settings.global_batch, "rank_batch": settings.rank_batch}
        self.order = Order(len(self.data), **batches, ranks=world.ranks, seed=settings.seed)
        classes = 1 + int(torch.cat([self.data.labels, self._test.labels]).max())
        self._model = build(settings, classes, len(self.data[0][0]), world.ranks).to(world.device)
        self._parallel = world.wrap(self._model)
        self._optimizer = build_optimizer(settings, self._model)
        schedule = Schedule(length=settings.epochs, warmup=settings.warmup, decay=settings.decay, power=2)
        rate = schedule.by_steps(self.order.steps_per_epoch)
        self._scheduler = torch.optim.lr_scheduler.LambdaLR(self._optimizer, rate)
        self._criterion = nn.CrossEntropyLoss(label_smoothing=settings.smoothing)
        self._precision = Precision(settings.precision, world.device)

    def epoch(self, number: int) -> Iterator[float]:
        """Yield the loss of each step, over all ranks."""
        self._parallel.train()
        self.data.begin(number)
        steps = self.order.epoch(number, rank=self._world.rank)
        parts = iter(self._loader(self.data, [part for step in steps for part in step]))
        for step in steps:
            losses = []
            for images, labels in itertools.islice(parts, len(step)):
                with self._precision.autocast():
                    loss = self._criterion(self._parallel(images), labels)
                # With an aggregation frequency the gradients are there after the last part of the step.
                self._precision.backward(loss)
                losses.append(loss.detach())
            self._precision.step(self._optimizer)
            self._optimizer.zero_grad()
            self._scheduler.step()
            yield self._world.total(torch.stack(losses).sum())[0] / (len(losses) * self._world.ranks)

    @torch.no_grad()
    def accuracy(self) -> float:
        """Return the share of the test images that are classified right; each rank looks at its own."""
        average_batch_norm(self._model)
        self._model.eval()
        mine = list(range(self._world.rank, len(self._test), self._world.ranks))
        parts = [mine[first : first + 256] for first in range(0, len(mine), 256)]
        right = 0
        for images, labels in self._loader(self._test, parts):
            right += int((self._model(images).argmax(dim=1) == labels).sum())
        return self._world.total(right)[0] / len(self._test)

    def save(self, path: Path) -> None:
        torch.save(self._model.state_dict(), path)

    def _loader(self, data: Images, parts: list[list[int]]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for images, labels in DataLoader(data, batch_sampler=parts, num_workers=self._settings.workers):
            yield images.to(self._world.device), labels.to(self._world.device)


def main() -> None:
    settings = parse()
    world = join()
    log = RunLog(ranks=world.ranks, active=world.rank == 0, target=settings.target, alone=settings.alone)
    with log.interval("init"):
        channels = (Path(os.environ[f"SM_CHANNEL_{name}"]) for name in ("TRAINING", "TEST"))
        training = Training(settings, world, *channels)
    log.point("global_batch_size", settings.global_batch)
    log.point("seed", settings.seed)
    done = 0
    for epoch in range(settings.epochs):
        with log.epoch(epoch + 1):
            for loss in training.epoch(epoch):
                done += 1
                log.count(settings.global_batch)
                if world.rank == 0:
                    print(f"step={done} loss={loss:.7f}")
                if done == settings.steps:
                    break
        reached = log.evaluation("eval_accuracy", training.accuracy(), epoch + 1)
        if reached or done == settings.steps:
            break
    if world.rank == 0:
        training.save(Path(os.environ["SM_MODEL_DIR"]) / "model.pt")
    log.finish(require_target=settings.require_target)
    leave()


if __name__ == "__main__":
    main()
