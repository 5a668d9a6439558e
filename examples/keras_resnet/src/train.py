"""Train a ResNet in Keras on labelled images, on any number of ranks. All settings are hyperparameters."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import keras
import numpy as np
import smdistributed.dataparallel.tensorflow as sdp
import tensorflow as tf
from common.for_tensorflow import world
from common.for_tensorflow.world import World
from common.loop import run
from common.order import Order, shuffled
from common.settings import add_settings, learning_rate, schedule_of, truth
from images import Images
from resnet import MODELS

from herringbone_parallel.tensorflow.recipes.api import (
    LARS,
    ScheduledRate,
    average_batch_norm,
    tune_batch_norm,
)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_settings(parser, optimizers=("sgd", "lars"))
    parser.set_defaults(power=2.0)
    parser.add_argument("--model", choices=sorted(MODELS), default="resnet50")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--augment", type=truth, default=True, help="crop and mirror at random")
    parser.add_argument("--double", type=truth, default=False, help="weights and arithmetic in fp64")
    parser.add_argument("--smoothing", type=float, default=0.0, help="smoothing of labels")
    parser.add_argument(
        "--tune-batch-norm", type=truth, default=False, help="scale BatchNorm's momentum with the forwards of all ranks"
    )
    parser.add_argument(
        "--bn-base-batch", type=int, default=32, help="the batch that BatchNorm's momentum of 0.9 is meant for"
    )
    return parser.parse_known_args(arguments)[0]


def build_optimizer(settings: argparse.Namespace, steps_per_epoch: int) -> keras.optimizers.Optimizer:
    """Build the optimizer that the settings name. Its schedule counts steps of the global batch."""
    rate = ScheduledRate(learning_rate(settings), schedule_of(settings), steps_per_unit=steps_per_epoch)
    shared = {"weight_decay": settings.weight_decay, "global_clipnorm": settings.clip}
    if settings.optimizer == "lars":
        return LARS(rate, trust=settings.trust, **shared)
    optimizer = keras.optimizers.SGD(rate, momentum=0.9, **shared)
    optimizer.exclude_from_weight_decay(var_names=["bias", "beta", "gamma"])
    return optimizer


class Training:
    """This rank's part of a training run on all ranks."""

    def __init__(self, settings: argparse.Namespace, world: World, folder: Path, test: Path) -> None:
        self._world, self.epochs = world, settings.epochs
        self._data = Images(folder, size=settings.image_size, seed=settings.seed if settings.augment else None)
        self._test = Images(test, size=settings.image_size, classes=self._data.classes)
        batches = {"global_batch": settings.global_batch, "rank_batch": settings.rank_batch}
        self.order = Order(len(self._data), **batches, ranks=world.ranks, seed=settings.seed, shuffled=shuffled)
        # Every rank draws the same weights from the seed. The library compares them before the second step.
        keras.utils.set_random_seed(settings.seed)
        world.set_precision(settings.precision, double=settings.double)
        self.model = MODELS[settings.model](settings.image_size, self._data.classes.count, self._data.colours)
        if settings.tune_batch_norm:
            tune_batch_norm(self.model, batch=settings.rank_batch * world.ranks, base_batch=settings.bn_base_batch)
        self.model.compile(
            sdp.DistributedOptimizer(build_optimizer(settings, self.order.steps_per_epoch)),
            keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=settings.smoothing),
            jit_compile=False,
        )

    def epoch(self, number: int, first: int = 0) -> Iterator[float]:
        """Train one epoch from its step `first` on. Yield the mean loss of each step over all ranks."""
        steps = self.order.epoch(number, rank=self._world.rank)[first:]
        numbers = list(chain.from_iterable(chain.from_iterable(steps)))
        losses = []
        for images, labels in self._data.batches(numbers, self.order.rank_batch, epoch=number):
            self.model.reset_metrics()
            targets = tf.one_hot(labels, self._data.classes.count)
            # With an aggregation frequency, the optimizer changes the weights in the last part of a step only.
            losses.append(self.model.train_on_batch(images, targets, return_dict=True)["loss"])
            if len(losses) == self.order.parts_per_step:
                yield self._world.total(sum(losses))[0] / (len(losses) * self._world.ranks)
                losses.clear()

    def evaluate(self) -> dict[str, float]:
        """Return the accuracy on the test images. Each rank classifies a part of them."""
        # Ranks have different moving averages: without this line the accuracy would depend on the number of ranks.
        average_batch_norm(self.model)
        numbers = list(range(self._world.rank, len(self._test), self._world.ranks))
        right = 0
        for images, labels in self._test.batches(numbers, 256):
            right += int(np.sum(self.model.predict_on_batch(images).argmax(axis=1) == labels.numpy()))
        return {"eval_accuracy": self._world.total(right)[0] / len(self._test)}


if __name__ == "__main__":
    settings = parse()
    run(settings, functools.partial(Training, settings), world)
