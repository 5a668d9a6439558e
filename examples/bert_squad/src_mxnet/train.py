"""Train a BERT to find answers in a text with MXNet, on any number of ranks. All settings are hyperparameters."""

from __future__ import annotations

import functools
from typing import Any

import mxnet as mx
from common.for_mxnet import world
from common.for_mxnet.updates import Updates, build_trainer
from common.loop import run
from models import Bert, build
from task import Batch, Scores, Task, parse


class Training(Task):
    """The task with Gluon's model and trainer."""

    def build_model(self, vocabulary: int) -> Bert:
        self.world.require_fp32(self.settings.precision)
        # Every rank draws the same weights from the seed. The trainer compares them before the first step.
        mx.random.seed(self.settings.seed)
        return build(self.settings, vocabulary, self.world.device)

    def build_updates(self) -> Updates:
        trainer = build_trainer(self.settings, self.world, self.model)
        return Updates(self.settings, self.world, self.model, trainer, self.order)

    def loss(self, batch: Batch) -> Any:
        cross_entropy = mx.gluon.loss.SoftmaxCrossEntropyLoss()
        pairs = zip(self._scored(batch), (batch.begins, batch.ends), strict=True)
        losses = [cross_entropy(scores, self._array(labels)).mean() for scores, labels in pairs]
        return sum(losses) / len(losses)

    def scores(self, batch: Batch) -> Scores:
        begins, ends = self._scored(batch)
        return begins.asnumpy().tolist(), ends.asnumpy().tolist()

    def _scored(self, batch: Batch) -> tuple[Any, Any]:
        return self.model(*map(self._array, (batch.tokens, batch.kinds, batch.mask)))

    def _array(self, values: Any) -> Any:
        return mx.nd.array(values, ctx=self.world.device)


def main() -> None:
    settings = parse()
    run(settings, functools.partial(Training, settings), world)


if __name__ == "__main__":
    main()
