"""Train a BERT on text with MXNet, first on short pairs, then on long ones: hidden words and the order of texts.

All settings are hyperparameters. The script is the same on any number of ranks.
"""

from __future__ import annotations

import argparse
import functools
from typing import Any

import mxnet as mx
from common.for_mxnet import world
from common.for_mxnet.updates import Updates, build_trainer
from common.loop import run
from common.order import Order
from models import Bert, build
from task import Batch, Scores, Task, parse


class Training(Task):
    """The task with Gluon's model and trainer."""

    def build_model(self, vocabulary: int, length: int) -> Bert:
        self.world.require_fp32(self.settings.precision)
        # Every rank draws the same weights from the seed. The trainer compares them before the first step.
        mx.random.seed(self.settings.seed)
        return build(self.settings, vocabulary, length, self.world.device)

    def build_optimizer(self) -> mx.gluon.Trainer:
        return build_trainer(self.settings, self.world, self.model)

    def build_updates(self, settings: argparse.Namespace, order: Order) -> Updates:
        return Updates(settings, self.world, self.model, self.optimizer, order)

    def loss(self, batch: Batch) -> Any:
        cross_entropy = mx.gluon.loss.SoftmaxCrossEntropyLoss()
        pairs = zip(self._scored(batch), (batch.words, batch.follows), strict=True)
        return sum(cross_entropy(scores, self._array(labels)).mean() for scores, labels in pairs)

    def scores(self, batch: Batch) -> Scores:
        words, follows = self._scored(batch)
        return words.asnumpy(), follows.asnumpy()

    def _scored(self, batch: Batch) -> tuple[Any, Any]:
        return self.model(*map(self._array, (batch.tokens, batch.kinds, batch.mask, batch.places)))

    def _array(self, values: Any) -> Any:
        return mx.nd.array(values, ctx=self.world.device)


def main() -> None:
    settings = parse()
    run(settings, functools.partial(Training, settings), world)


if __name__ == "__main__":
    main()
