"""BERT's encoder in Keras: every token attends to all tokens of its text. Its weights have HuggingFace's names, too."""

from __future__ import annotations

from typing import Any, NamedTuple

import keras
import tensorflow as tf
from keras import layers

from common.weights import Pretrained, fitting


class Weight(NamedTuple):
    """A variable, and whether it is the transpose of HuggingFace's: torch stores [outputs, inputs]."""

    variable: Any
    transposed: bool = False

    def array(self, value: Any) -> Any:
        """Convert a value between the variable's form and HuggingFace's."""
        return value.T if self.transposed else value


def linear(layer: layers.Dense, name: str) -> dict[str, Weight]:
    """Return the weights of a dense layer by HuggingFace's names."""
    return {f"{name}.weight": Weight(layer.kernel, True), f"{name}.bias": Weight(layer.bias)}


def norm(layer: layers.LayerNormalization, name: str) -> dict[str, Weight]:
    """Return the weights of a normalisation by HuggingFace's names."""
    return {f"{name}.weight": Weight(layer.gamma), f"{name}.bias": Weight(layer.beta)}


def dense(units: int, fan: float | None = None) -> layers.Dense:
    """Build a dense layer. Its initial weights have BERT's deviation of 0.02, or torch's bounds for `fan` inputs."""
    start = keras.initializers.RandomUniform(-(fan**-0.5), fan**-0.5) if fan else _normal()
    return layers.Dense(units, kernel_initializer=start)


def _normal() -> keras.initializers.Initializer:
    return keras.initializers.RandomNormal(stddev=0.02)


class Block(layers.Layer):
    """Attention and two dense layers, each followed by a sum and a normalisation, as in the paper."""

    def __init__(self, width: int, heads: int, inner: int, dropout: float, epsilon: float) -> None:
        super().__init__()
        self.heads = heads
        # As in torch's attention, Xavier's bounds are those of one matrix with all three projections.
        self.query, self.key, self.value = (dense(width, width / 1.5) for _ in range(3))
        self.output_dense, self.inner = dense(width, width), dense(inner, width)
        self.outer = dense(width, inner)
        self.attention_norm, self.norm = (layers.LayerNormalization(epsilon=epsilon) for _ in range(2))
        self.dropout = layers.Dropout(dropout)

    def call(self, states: tf.Tensor, mask: tf.Tensor, training: bool = False) -> tf.Tensor:
        query, key, value = (self._split(layer(states)) for layer in (self.query, self.key, self.value))
        scores = tf.matmul(query, key, transpose_b=True) * tf.cast(query.shape[-1] ** -0.5, query.dtype)
        # Padding gets the lowest number of the type: infinity would give NaN in a row of padding only.
        scores = tf.where(mask[:, None, None, :], scores, scores.dtype.min)
        shares = self.dropout(tf.nn.softmax(scores), training=training)
        mixed = tf.transpose(tf.matmul(shares, value), [0, 2, 1, 3])
        mixed = self.output_dense(tf.reshape(mixed, tf.shape(states)))
        states = self.attention_norm(states + self.dropout(mixed, training=training))
        inner = keras.activations.gelu(self.inner(states), approximate=False)
        inner = self.outer(self.dropout(inner, training=training))
        return self.norm(states + self.dropout(inner, training=training))

    def _split(self, states: tf.Tensor) -> tf.Tensor:
        """Return the states per head, [n, heads, length, width / heads]."""
        shape = tf.shape(states)
        split = tf.reshape(states, [shape[0], shape[1], self.heads, states.shape[-1] // self.heads])
        return tf.transpose(split, [0, 2, 1, 3])

    def weights_by_name(self, name: str) -> dict[str, Weight]:
        """Return the block's weights by HuggingFace's names, which begin with `name`."""
        attention = f"{name}.attention"
        return {
            **linear(self.query, f"{attention}.self.query"),
            **linear(self.key, f"{attention}.self.key"),
            **linear(self.value, f"{attention}.self.value"),
            **linear(self.output_dense, f"{attention}.output.dense"),
            **norm(self.attention_norm, f"{attention}.output.LayerNorm"),
            **linear(self.inner, f"{name}.intermediate.dense"),
            **linear(self.outer, f"{name}.output.dense"),
            **norm(self.norm, f"{name}.output.LayerNorm"),
        }


class Encoder(layers.Layer):
    """Embeddings and Transformer layers.

    Inputs are [n, length]: `tokens`, `kinds` (0 or 1, the text that a token belongs to) and `mask` (True for text,
    False for padding). Outputs are states, [n, length, width].
    """

    def __init__(
        self,
        *,
        vocabulary: int,
        length: int,
        width: int,
        depth: int,
        heads: int,
        dropout: float = 0.0,
        inner: int = 0,
        epsilon: float = 1e-5,
    ) -> None:
        super().__init__()
        self.tokens, self.kinds, self.positions = (
            layers.Embedding(count, width, embeddings_initializer=_normal()) for count in (vocabulary, 2, length)
        )
        self.norm, self.dropout = layers.LayerNormalization(epsilon=epsilon), layers.Dropout(dropout)
        self.blocks = [Block(width, heads, inner or 4 * width, dropout, epsilon) for _ in range(depth)]

    def call(self, tokens: tf.Tensor, kinds: tf.Tensor, mask: tf.Tensor, training: bool = False) -> tf.Tensor:
        positions = tf.range(tf.shape(tokens)[1])
        states = self.tokens(tokens) + self.kinds(kinds) + self.positions(positions)
        states = self.dropout(self.norm(states), training=training)
        for block in self.blocks:
            states = block(states, mask, training=training)
        return states

    def weights_by_name(self) -> dict[str, Weight]:
        """Return all weights by HuggingFace's names."""
        start = "bert.embeddings"
        weights = {
            f"{start}.word_embeddings.weight": Weight(self.tokens.embeddings),
            f"{start}.token_type_embeddings.weight": Weight(self.kinds.embeddings),
            f"{start}.position_embeddings.weight": Weight(self.positions.embeddings),
            **norm(self.norm, f"{start}.LayerNorm"),
        }
        for number, block in enumerate(self.blocks):
            weights |= block.weights_by_name(f"bert.encoder.layer.{number}")
        return weights


def load(weights: dict[str, Weight], pretrained: Pretrained, *, heads: tuple[str, ...]) -> None:
    """Assign a published model's weights. Those that begin with one of `heads` may be missing in the model."""
    shapes = {
        name: tuple(reversed(weight.variable.shape)) if weight.transposed else tuple(weight.variable.shape)
        for name, weight in weights.items()
    }
    for name, value in fitting(pretrained, shapes, heads=heads).items():
        weights[name].variable.assign(weights[name].array(value))
