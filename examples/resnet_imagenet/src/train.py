"""Train a ResNet on labelled images, on any number of ranks. All settings are hyperparameters."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from common.for_torch import world
from common.for_torch.checkpoints import Checkpoints
from common.for_torch.updates import Updates, build_optimizer
from common.for_torch.world import World
from common.loop import run
from common.order import Order
from common.settings import add_settings, truth
from images import Images
from resnet import MODELS
from torch import nn
from torch.utils.data import DataLoader

from herringbone_parallel.torch.recipes.api import average_batch_norm, seeded, tune_batch_norm

Batch = tuple[torch.Tensor, torch.Tensor]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_settings(parser, optimizers=("sgd", "lars"))
    parser.set_defaults(power=2.0)
    parser.add_argument("--model", choices=sorted(MODELS), default="resnet50")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--augment", type=truth, default=True, help="crop and mirror at random")
    parser.add_argument("--smoothing", type=float, default=0.0, help="smoothing of labels")
    parser.add_argument(
        "--tune-batch-norm", type=truth, default=False, help="scale BatchNorm's momentum with the forwards of all ranks"
    )
    parser.add_argument(
        "--bn-base-batch", type=int, default=32, help="the batch that BatchNorm's momentum of 0.1 is meant for"
    )
    parser.add_argument("--workers", type=int, default=0, help="processes per rank that read images")
    return parser.parse_known_args(arguments)[0]


def build(settings: argparse.Namespace, classes: int, colours: int, ranks: int) -> nn.Module:
    """Build the same model on every rank, from the seed."""
    with seeded(settings.seed):
        model = MODELS[settings.model](classes, colours)
    if settings.tune_batch_norm:
        tune_batch_norm(model, batch=settings.rank_batch * ranks, base_batch=settings.bn_base_batch)
    return model


class Training:
    """This rank's part of a training run on all ranks."""

    def __init__(self, settings: argparse.Namespace, world: World, folder: Path, test: Path) -> None:
        self._settings, self._world, self.epochs = settings, world, settings.epochs
        self._data = Images(folder, size=settings.image_size, seed=settings.seed if settings.augment else None)
        self._test = Images(test, size=settings.image_size, classes=self._data.classes)
        batches = {"global_batch": settings.global_batch, "rank_batch": settings.rank_batch}
        self.order = Order(len(self._data), **batches, ranks=world.ranks, seed=settings.seed)
        colours = len(self._data[0][0])
        self.model = build(settings, self._data.classes.count, colours, world.ranks)
        self._parallel = world.wrap(self.model)
        self._criterion = nn.CrossEntropyLoss(label_smoothing=settings.smoothing)
        self._updates = Updates(settings, world, self.model, build_optimizer(settings, self.model), self.order)

    @property
    def parts(self) -> dict[str, Any]:
        """Everything that the next step depends on, for the checkpoints."""
        return self._updates.parts

    def epoch(self, number: int, first: int = 0) -> Iterator[float]:
        """Train one epoch from its step `first` on. Yield the mean loss of each step over all ranks."""
        self._parallel.train()
        self._data.begin(number)
        steps = self.order.epoch(number, rank=self._world.rank)[first:]
        # One loader for the whole epoch: workers read ahead across the steps.
        parts = iter(self._loader(self._data, [part for step in steps for part in step]))
        for step in steps:
            yield self._updates.step(islice(parts, len(step)), self._loss)

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Return the accuracy on the test images. Each rank classifies a part of them."""
        # Ranks have different moving averages: without this line the accuracy would depend on the number of ranks.
        average_batch_norm(self.model)
        self.model.eval()
        indices = list(range(self._world.rank, len(self._test), self._world.ranks))
        parts = [indices[first : first + 256] for first in range(0, len(indices), 256)]
        right = 0
        for images, labels in self._loader(self._test, parts):
            right += int((self.model(images).argmax(dim=1) == labels).sum())
        return {"eval_accuracy": self._world.total(right)[0] / len(self._test)}

    def _loss(self, part: Batch) -> torch.Tensor:
        images, labels = part
        return self._criterion(self._parallel(images), labels)

    def _loader(self, data: Images, parts: list[list[int]]) -> Iterator[Batch]:
        for images, labels in DataLoader(data, batch_sampler=parts, num_workers=self._settings.workers):
            yield images.to(self._world.device), labels.to(self._world.device)


def main() -> None:
    settings = parse()
    run(settings, functools.partial(Training, settings), world, Checkpoints)


if __name__ == "__main__":
    main()
