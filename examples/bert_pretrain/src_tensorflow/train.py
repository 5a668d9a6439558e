"""Train a BERT on text with TensorFlow, first on short pairs, then on long ones: hidden words and the order of texts.

All settings are hyperparameters. The script is the same on any number of ranks.
"""

from __future__ import annotations

import argparse
import functools
from typing import Any

import keras
import tensorflow as tf
from common.for_tensorflow import world
from common.for_tensorflow.updates import Updates, build_optimizer
from common.loop import run
from common.order import Order
from models import Bert, build
from task import Batch, Scores, Task, parse


class Training(Task):
    """The task with Keras's model and optimizer."""

    def build_model(self, vocabulary: int, length: int) -> Bert:
        # Every rank draws the same weights from the seed. The library compares them before the second step.
        keras.utils.set_random_seed(self.settings.seed)
        self.world.set_precision(self.settings.precision)
        model = build(self.settings, vocabulary, length)
        # The number of hidden words differs between batches.
        self._scored = tf.function(lambda *inputs: model(*inputs), reduce_retracing=True)
        return model

    def build_optimizer(self) -> Any:
        # Both phases have the same number of parts per step.
        parts = self.settings.global_batch // (self.settings.rank_batch * self.world.ranks)
        return build_optimizer(self.settings, self.world, self.model, parts)

    def build_updates(self, settings: argparse.Namespace, order: Order) -> Updates:
        return Updates(settings, self.world, self.model, self.optimizer, order)

    def loss(self, batch: Batch) -> tf.Tensor:
        scored = self.model(batch.tokens, batch.kinds, batch.mask, batch.places, training=True)
        pairs = zip((batch.words, batch.follows), scored, strict=True)
        losses = [tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores) for labels, scores in pairs]
        return sum(map(tf.reduce_mean, losses))

    def scores(self, batch: Batch) -> Scores:
        words, follows = self._scored(batch.tokens, batch.kinds, batch.mask, batch.places)
        return words.numpy(), follows.numpy()


def main() -> None:
    settings = parse()
    run(settings, functools.partial(Training, settings), world)


if __name__ == "__main__":
    main()
