"""Train a BERT to find answers in a text with TensorFlow, on any number of ranks. All settings are hyperparameters."""

from __future__ import annotations

import functools

import keras
import tensorflow as tf
from common.for_tensorflow import world
from common.for_tensorflow.updates import Updates, build_optimizer
from common.loop import run
from models import Bert, build
from task import Batch, Scores, Task, parse


class Training(Task):
    """The task with Keras's model and optimizer."""

    def build_model(self, vocabulary: int) -> Bert:
        # Every rank draws the same weights from the seed. The library compares them before the second step.
        keras.utils.set_random_seed(self.settings.seed)
        self.world.set_precision(self.settings.precision)
        model = build(self.settings, vocabulary)
        # The number of windows differs between questions.
        self._scored = tf.function(lambda *inputs: model(*inputs), reduce_retracing=True)
        return model

    def build_updates(self) -> Updates:
        optimizer = build_optimizer(self.settings, self.world, self.model, self.order.parts_per_step)
        return Updates(self.settings, self.world, self.model, optimizer, self.order)

    def loss(self, batch: Batch) -> tf.Tensor:
        scored = self.model(batch.tokens, batch.kinds, batch.mask, training=True)
        pairs = zip((batch.begins, batch.ends), scored, strict=True)
        losses = [tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores) for labels, scores in pairs]
        return tf.reduce_mean(losses)

    def scores(self, batch: Batch) -> Scores:
        begins, ends = self._scored(batch.tokens, batch.kinds, batch.mask)
        return begins.numpy().tolist(), ends.numpy().tolist()


def main() -> None:
    settings = parse()
    run(settings, functools.partial(Training, settings), world)


if __name__ == "__main__":
    main()
