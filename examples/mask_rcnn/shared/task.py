"""Detecting objects, without a framework: settings, images in parts, and the distributed evaluation."""

from __future__ import annotations

import argparse
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from coco import Coco, read
from common import order
from common.data import DataError
from common.loop import World
from common.settings import add_settings, truth
from images import load
from scoring import average_precision, describe
from sizes import SIZES

# Images of one part with their targets, as `images.load` returns them.
Images = list[tuple[Any, dict[str, Any]]]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_settings(parser, optimizers=("sgd", "lars"))
    parser.set_defaults(clip=10.0, decay="cosine")
    parser.add_argument("--model", choices=list(SIZES), default="resnet50")
    parser.add_argument("--double", type=truth, default=False, help="weights and arithmetic in fp64")
    parser.add_argument("--workers", type=int, default=0, help="processes per rank that read images (PyTorch only)")
    return parser.parse_known_args(arguments)[0]


class Task(ABC):
    """This rank's part of a training run on all ranks. A framework adds the model, its loss, and its steps."""

    # The order of the images in an epoch: a permutation by count and seed.
    shuffled: Callable[[int, int], list[int]] = staticmethod(order.shuffled)

    def __init__(self, settings: argparse.Namespace, world: World, train: Path, test: Path) -> None:
        self.settings, self.world, self.epochs = settings, world, settings.epochs
        self._data, self._test = read(train), read(test)
        if self._data.categories != self._test.categories:
            raise DataError(f"{self._data.file} and {self._test.file} differ in their categories")
        batches = {"global_batch": settings.global_batch, "rank_batch": settings.rank_batch}
        self.order = order.Order(
            len(self._data.pictures), **batches, ranks=world.ranks, seed=settings.seed, shuffled=self.shuffled
        )
        self.model = self.build_model(len(self._data.categories))
        self.updates = self.build_updates()

    def refuse_settings_of_torch(self, framework: str) -> None:
        """Raise for the channel `weights`, and for `--workers`, which only PyTorch's script reads."""
        if "SM_CHANNEL_WEIGHTS" in os.environ:
            raise DataError(
                f"the channel `weights` has PyTorch's state dict, which {framework} does not read: leave the channel"
                " out, or train with PyTorch"
            )
        if self.settings.workers:
            raise ValueError(f"--workers is for PyTorch; {framework}'s script reads images in the rank: leave it out")

    @abstractmethod
    def build_model(self, classes: int) -> Any:
        """Return the model for a number of classes, not counting the background, with equal weights on all ranks."""

    @abstractmethod
    def build_updates(self) -> Any:
        """Return an object whose `step(parts, loss_of)` runs a step of `self.order` and returns its mean loss."""

    @abstractmethod
    def loss(self, part: tuple[Any, Any]) -> Any:
        """Return the sum of the five losses of (seed, images), as a scalar of the framework.

        The model draws the boxes to learn from. The seed is that of the part, so that any rank draws the same boxes.
        """

    @abstractmethod
    def detect(self, image: Any) -> dict[str, Any]:
        """Return `boxes`, `labels`, `scores` and `masks` of an image in NumPy, as `scoring.describe` reads them."""

    def batches(self, data: Coco, parts: list[list[int]]) -> Iterator[Any]:
        """Yield the images of each part."""
        for part in parts:
            yield [load(data, index) for index in part]

    def epoch(self, number: int, first: int = 0) -> Iterator[float]:
        """Train one epoch from its step `first` on. Yield the mean loss of each step over all ranks."""
        steps = self.order.epoch(number, rank=self.world.rank)[first:]
        batches = self.batches(self._data, [part for step in steps for part in step])
        for step in steps:
            seeds = (np.array(hash((self.settings.seed, number, *part)), np.int64) for part in step)
            yield self.updates.step(((seed, next(batches)) for seed in seeds), self.loss)

    def evaluate(self) -> dict[str, float]:
        """Return the average precision of masks and of boxes. Each rank detects in a part of the images."""
        indices = range(self.world.rank, len(self._test.pictures), self.world.ranks)
        detections = []
        for index, images in zip(indices, self.batches(self._test, [[index] for index in indices]), strict=True):
            [(image, _)] = images
            output = self.detect(image)
            detections += describe(self._test.pictures[index].number, self._test.categories, output)
        # Average precision ranks the detections of all images by score, so it is no mean over ranks.
        lists = [json.loads(text) for text in self.world.gather(json.dumps(detections))]
        precision = average_precision(self._test.file, [detection for part in lists for detection in part])
        return {"eval_mask_ap": precision["segm"], "eval_box_ap": precision["bbox"]}
