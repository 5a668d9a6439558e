"""The models whose training over several ranks must equal that in one process.

Each function returns a `keras.Model`. It creates or calls its layers inside `at(slot)`. On a pipeline, `at` is
`smp.partition` with the partition that a placement gives to the slot; in one process it does nothing. `slots` is the
number of slots of a model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import smdistributed.modelparallel.tensorflow as smp
import tensorflow as tf
from keras import layers

BATCH = 8

At = Callable[[int], Any]


@dataclass(frozen=True)
class Case:
    """A model: `build(base, at)` creates it as a subclass of `base` or, with `wrapped`, as a model to wrap."""

    build: Callable[[Any, At], Any]
    slots: int
    inputs: Callable[[np.random.Generator], Any]
    wrapped: bool = False
    classes: int = 3

    def plain(self) -> Any:
        return self.build(keras.Model, lambda slot: nullcontext())

    def distributed(self, placement: list[int]) -> Any:
        def at(slot: int) -> Any:
            return smp.partition(placement[slot % len(placement)])

        model = self.build(smp.DistributedModel, at)
        return smp.DistributedModel(model) if self.wrapped else model

    def loss(self, labels: Any, outputs: Any) -> Any:
        logits = tf.nest.flatten(outputs)
        losses = [tf.nn.sparse_softmax_cross_entropy_with_logits(labels, output) for output in logits]
        return tf.add_n([tf.reduce_mean(loss) for loss in losses])

    def batches(self, steps: int) -> Iterator[Any]:
        generator = np.random.default_rng(5)
        for _ in range(steps):
            yield self.inputs(generator), generator.integers(0, self.classes, BATCH).astype(np.int32)


def _vectors(generator: np.random.Generator) -> Any:
    return generator.normal(size=(BATCH, 6)).astype(np.float32)


def _images(generator: np.random.Generator) -> Any:
    return generator.normal(size=(BATCH, 8, 8, 1)).astype(np.float32)


def _sequences(generator: np.random.Generator) -> Any:
    return generator.normal(size=(BATCH, 5, 4)).astype(np.float32)


def _words(generator: np.random.Generator) -> Any:
    return generator.integers(0, 11, (BATCH, 4)).astype(np.int32)


def _two(generator: np.random.Generator) -> Any:
    return {"left": _vectors(generator), "right": _vectors(generator)}


def conv(base: Any, at: At) -> Any:
    class Conv(base):
        def __init__(self) -> None:
            super().__init__()
            self.conv = layers.Conv2D(4, 3, activation="relu")
            self.flatten = layers.Flatten()
            self.wide = layers.Dense(8, activation="relu")
            self.out = layers.Dense(3)

        def call(self, images: Any, training: Any = None) -> Any:
            with at(0):
                hidden = self.conv(images)
            with at(1):
                hidden = self.wide(self.flatten(hidden))
            with at(2):
                return self.out(hidden)

    return Conv()


def dense(base: Any, at: At) -> Any:
    class Net(base):
        def __init__(self) -> None:
            super().__init__()
            self.all = [layers.Dense(7, activation="tanh") for _ in range(3)] + [layers.Dense(3)]

        def call(self, hidden: Any, training: Any = None) -> Any:
            for slot, layer in enumerate(self.all):
                with at(slot):
                    hidden = tf.nn.tanh(layer(hidden))
            return hidden

    return Net()


def residual(base: Any, at: At) -> Any:
    class Residual(base):
        def __init__(self) -> None:
            super().__init__()
            self.enter, self.inner, self.out = layers.Dense(6), layers.Dense(6, activation="relu"), layers.Dense(3)

        def call(self, vectors: Any, training: Any = None) -> Any:
            with at(0):
                first = self.enter(vectors)
            with at(1):
                second = self.inner(first)
            # Outside of both: this operation runs where its newest value is.
            total = first + second
            with at(2):
                return self.out(total) + vectors[:, :3]

    return Residual()


def reused(base: Any, at: At) -> Any:
    class Reused(base):
        def __init__(self) -> None:
            super().__init__()
            self.enter, self.twice, self.out = layers.Dense(6), layers.Dense(6, activation="tanh"), layers.Dense(3)

        def call(self, vectors: Any, training: Any = None) -> Any:
            with at(0):
                hidden = self.enter(vectors)
            with at(1):
                hidden = self.twice(hidden)
            with at(2):
                hidden = hidden * 2.0 - 1.0
            with at(1):
                hidden = self.twice(hidden)
            with at(2):
                return self.out(hidden)

    return Reused()


def reused_state(base: Any, at: At) -> Any:
    """Call layers that change their variables on two partitions: they stay on that of their first call."""

    class ReusedState(base):
        def __init__(self) -> None:
            super().__init__()
            self.enter, self.out = layers.Dense(6), layers.Dense(3)
            self.norm, self.drop = layers.BatchNormalization(), layers.Dropout(0.4, seed=7)

        def call(self, vectors: Any, training: Any = None) -> Any:
            with at(0):
                hidden = self.drop(self.norm(self.enter(vectors), training=training), training=training)
            with at(1):
                hidden = tf.tanh(hidden)
                hidden = self.drop(self.norm(hidden, training=training), training=training)
                return self.out(hidden)

    return ReusedState()


def two_inputs(base: Any, at: At) -> Any:
    class TwoInputs(base):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right, self.out = layers.Dense(5), layers.Dense(5), layers.Dense(3)

        def call(self, inputs: Any, training: Any = None) -> Any:
            with at(0):
                left = self.left(inputs["left"])
            with at(1):
                right = self.right(inputs["right"])
            with at(2):
                return self.out(tf.concat([left, right], axis=1))

    return TwoInputs()


def dict_output(base: Any, at: At) -> Any:
    class DictOutput(base):
        def __init__(self) -> None:
            super().__init__()
            self.shared, self.first, self.second = layers.Dense(6), layers.Dense(3), layers.Dense(3)

        def call(self, vectors: Any, training: Any = None) -> Any:
            with at(0):
                hidden = self.shared(vectors)
                first = self.first(hidden)
            with at(1):
                return {"first": first, "more": [self.second(hidden)]}

    return DictOutput()


def batch_norm(base: Any, at: At) -> Any:
    class BatchNorm(base):
        def __init__(self) -> None:
            super().__init__()
            self.enter, self.norm, self.out = layers.Dense(6), layers.BatchNormalization(), layers.Dense(3)

        def call(self, vectors: Any, training: Any = None) -> Any:
            with at(0):
                hidden = self.enter(vectors)
            with at(1):
                hidden = self.norm(hidden, training=training)
            with at(2):
                return self.out(hidden)

    return BatchNorm()


def lstm(base: Any, at: At) -> Any:
    class Lstm(base):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.out = layers.LSTM(5, return_sequences=True), layers.LSTM(4), layers.Dense(3)

        def call(self, sequences: Any, training: Any = None) -> Any:
            with at(0):
                hidden = self.first(sequences)
            with at(1):
                hidden = self.second(hidden)
            with at(2):
                return self.out(hidden)

    return Lstm()


def attention(base: Any, at: At) -> Any:
    class Attention(base):
        def __init__(self) -> None:
            super().__init__()
            self.first = layers.MultiHeadAttention(2, 3, dropout=0.0)
            self.norm, self.second = layers.LayerNormalization(), layers.MultiHeadAttention(1, 4)
            self.out = layers.Dense(3)

        def call(self, sequences: Any, training: Any = None) -> Any:
            with at(0):
                hidden = sequences + self.first(sequences, sequences, use_causal_mask=True)
            with at(1):
                hidden = self.second(self.norm(hidden), sequences)
            with at(2):
                return self.out(tf.reduce_mean(hidden, axis=1))

    return Attention()


def tied(base: Any, at: At) -> Any:
    class Tied(base):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.inner = layers.Embedding(11, 6), layers.Dense(6, activation="tanh")

        def call(self, words: Any, training: Any = None) -> Any:
            with at(0):
                hidden = tf.reduce_mean(self.embed(words), axis=1)
            with at(1):
                hidden = self.inner(hidden)
            with at(2):
                return tf.matmul(hidden, self.embed.embeddings, transpose_b=True)

    return Tied()


def functional(base: Any, at: At) -> Any:
    vectors = keras.Input((6,))
    with at(0):
        first = layers.Dense(6, activation="relu")(vectors)
    with at(1):
        second = layers.Dense(6, activation="tanh")(first)
        total = layers.Add()([first, second])
    with at(2):
        out = layers.Dense(3)(total)
    return keras.Model(vectors, out)


def sequential(base: Any, at: At) -> Any:
    model = keras.Sequential()
    for slot in range(3):
        with at(slot):
            model.add(layers.Dense(6, activation="relu"))
    with at(3):
        model.add(layers.Dense(3))
    return model


def nested(base: Any, at: At) -> Any:
    class Block(keras.Model):
        def __init__(self, slot: int) -> None:
            super().__init__()
            self.first, self.second = layers.Dense(6, activation="relu"), layers.Dense(6)
            self.slot = slot

        def call(self, vectors: Any, training: Any = None) -> Any:
            with at(self.slot):
                hidden = self.first(vectors)
            with at(self.slot + 1):
                return self.second(hidden) + vectors

    class Nested(base):
        def __init__(self) -> None:
            super().__init__()
            self.blocks, self.out = [Block(0), Block(1)], layers.Dense(3)

        def call(self, hidden: Any, training: Any = None) -> Any:
            for block in self.blocks:
                hidden = block(hidden, training=training)
            with at(3):
                return self.out(hidden)

    return Nested()


def dropout(base: Any, at: At) -> Any:
    class Dropout(base):
        def __init__(self) -> None:
            super().__init__()
            self.enter, self.drop, self.out = layers.Dense(12), layers.Dropout(0.4, seed=7), layers.Dense(3)
            self.again = layers.Dropout(0.4, seed=8)

        def call(self, vectors: Any, training: Any = None) -> Any:
            with at(0):
                hidden = self.drop(self.enter(vectors), training=training)
            with at(1):
                return self.out(self.again(hidden, training=training))

    return Dropout()


def branches(base: Any, at: At) -> Any:
    class Branches(base):
        def __init__(self) -> None:
            super().__init__()
            self.enter, self.left, self.right, self.out = (layers.Dense(6) for _ in range(4))
            self.last = layers.Dense(3)

        def call(self, vectors: Any, training: Any = None) -> Any:
            with at(0):
                hidden = self.enter(vectors)
            with at(1):
                left = self.left(hidden)
            with at(2):
                right, half = self.right(hidden), tf.nn.relu(hidden)
            with at(0):
                joined = self.out(left * right) + half
            with at(3):
                return self.last(joined)

    return Branches()


def words(base: Any, at: At) -> Any:
    net = keras.Sequential()
    with at(0):
        net.add(layers.Embedding(11, 6))
    with at(1):
        net.add(layers.GlobalAveragePooling1D())
        net.add(layers.Dense(3))
    return net


CASES = {
    "words": Case(words, 2, _words, wrapped=True),
    "conv": Case(conv, 3, _images),
    "dense": Case(dense, 4, _vectors),
    "residual": Case(residual, 3, _vectors),
    "reused": Case(reused, 3, _vectors),
    "reused state": Case(reused_state, 2, _vectors),
    "two inputs": Case(two_inputs, 3, _two),
    "dict output": Case(dict_output, 2, _vectors),
    "batch norm": Case(batch_norm, 3, _vectors),
    "lstm": Case(lstm, 3, _sequences),
    "attention": Case(attention, 3, _sequences),
    "tied": Case(tied, 3, _words, classes=11),
    "functional": Case(functional, 3, _vectors, wrapped=True),
    "sequential": Case(sequential, 4, _vectors, wrapped=True),
    "nested": Case(nested, 4, _vectors),
    "dropout": Case(dropout, 2, _vectors),
    "branches": Case(branches, 4, _vectors),
}
