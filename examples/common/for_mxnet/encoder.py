"""BERT's encoder in Gluon: every token attends to all tokens of its text. Its weights have HuggingFace's names, too."""

from __future__ import annotations

from typing import Any

import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn

from common.weights import Pretrained, fitting

# Weights by HuggingFace's names. Gluon stores them in torch's form, [outputs, inputs].
Weights = dict[str, gluon.Parameter]
# What a padding token's score gets added: its share is 0, and a row of padding alone has no NaN.
_PADDING = -1e30


def linear(layer: nn.Dense, name: str) -> Weights:
    """Return the weights of a dense layer by HuggingFace's names."""
    return {f"{name}.weight": layer.weight, f"{name}.bias": layer.bias}


def norm(layer: nn.LayerNorm, name: str) -> Weights:
    """Return the weights of a normalisation by HuggingFace's names."""
    return {f"{name}.weight": layer.gamma, f"{name}.bias": layer.beta}


def dense(inputs: int, outputs: int, start: Any = None) -> nn.Dense:
    """Build a dense layer. By default, its initial weights have torch's bounds for its number of inputs."""
    start = start or mx.init.Uniform(inputs**-0.5)
    return nn.Dense(outputs, flatten=False, in_units=inputs, weight_initializer=start)


def gelu(states: Any) -> Any:
    """Return the exact GELU, not the approximation by tanh."""
    return mx.nd.LeakyReLU(states, act_type="gelu")


class Layer(gluon.Block):
    """Attention and two dense layers, each followed by a sum and a normalisation, as in the paper."""

    def __init__(self, width: int, heads: int, inner: int, dropout: float, epsilon: float) -> None:
        super().__init__()
        self._heads = heads
        with self.name_scope():
            # As in torch's attention, Xavier's bounds are those of one matrix with all three projections.
            start = mx.init.Uniform((1.5 / width) ** 0.5)
            self.query, self.key, self.value = (dense(width, width, start) for _ in range(3))
            self.output, self.inner, self.outer = dense(width, width), dense(width, inner), dense(inner, width)
            self.attention_norm, self.norm = (nn.LayerNorm(epsilon=epsilon, in_channels=width) for _ in range(2))
            self.dropout = nn.Dropout(dropout)

    def forward(self, states: Any, padding: Any) -> Any:
        """`padding` is what the scores get added, [n x heads, 1, length]."""
        query, key, value = (self._split(layer(states)) for layer in (self.query, self.key, self.value))
        scores = mx.nd.batch_dot(query, key, transpose_b=True) * query.shape[-1] ** -0.5
        shares = self.dropout(mx.nd.softmax(mx.nd.broadcast_add(scores, padding)))
        mixed = self._joined(mx.nd.batch_dot(shares, value), states.shape)
        states = self.attention_norm(states + self.dropout(self.output(mixed)))
        inner = self.outer(self.dropout(gelu(self.inner(states))))
        return self.norm(states + self.dropout(inner))

    def _split(self, states: Any) -> Any:
        """Return the states per head, [n x heads, length, width / heads]."""
        count, length, width = states.shape
        split = states.reshape((count, length, self._heads, width // self._heads)).transpose((0, 2, 1, 3))
        return split.reshape((count * self._heads, length, width // self._heads))

    def _joined(self, states: Any, shape: tuple[int, ...]) -> Any:
        count, length, width = shape
        split = states.reshape((count, self._heads, length, width // self._heads))
        return split.transpose((0, 2, 1, 3)).reshape(shape)

    def weights_by_name(self, name: str) -> Weights:
        """Return the layer's weights by HuggingFace's names, which begin with `name`."""
        attention = f"{name}.attention"
        return {
            **linear(self.query, f"{attention}.self.query"),
            **linear(self.key, f"{attention}.self.key"),
            **linear(self.value, f"{attention}.self.value"),
            **linear(self.output, f"{attention}.output.dense"),
            **norm(self.attention_norm, f"{attention}.output.LayerNorm"),
            **linear(self.inner, f"{name}.intermediate.dense"),
            **linear(self.outer, f"{name}.output.dense"),
            **norm(self.norm, f"{name}.output.LayerNorm"),
        }


class Encoder(gluon.Block):
    """Embeddings and Transformer layers.

    Inputs are [n, length]: `tokens`, `kinds` (0 or 1, the text that a token belongs to) and `mask` (1 for text, 0 for
    padding). Outputs are states, [n, length, width].
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
        self._heads = heads
        with self.name_scope():
            self.tokens, self.kinds, self.positions = (
                nn.Embedding(count, width, weight_initializer=mx.init.Normal(0.02)) for count in (vocabulary, 2, length)
            )
            self.norm, self.dropout = nn.LayerNorm(epsilon=epsilon, in_channels=width), nn.Dropout(dropout)
            self.layers = nn.Sequential()
            for _ in range(depth):
                self.layers.add(Layer(width, heads, inner or 4 * width, dropout, epsilon))

    def forward(self, tokens: Any, kinds: Any, mask: Any) -> Any:
        positions = self.positions(mx.nd.arange(tokens.shape[1], ctx=tokens.context))
        states = mx.nd.broadcast_add(self.tokens(tokens) + self.kinds(kinds), positions.expand_dims(0))
        states = self.dropout(self.norm(states))
        padding = ((1 - mask) * _PADDING).expand_dims(1).repeat(self._heads, axis=0)
        for layer in self.layers:
            states = layer(states, padding)
        return states

    def weights_by_name(self) -> Weights:
        """Return all weights by HuggingFace's names."""
        start = "bert.embeddings"
        weights = {
            f"{start}.word_embeddings.weight": self.tokens.weight,
            f"{start}.token_type_embeddings.weight": self.kinds.weight,
            f"{start}.position_embeddings.weight": self.positions.weight,
            **norm(self.norm, f"{start}.LayerNorm"),
        }
        for number, layer in enumerate(self.layers):
            weights.update(layer.weights_by_name(f"bert.encoder.layer.{number}"))
        return weights


def load(weights: Weights, pretrained: Pretrained, *, heads: tuple[str, ...]) -> None:
    """Assign a published model's weights. Those that begin with one of `heads` may be missing in the model."""
    shapes = {name: tuple(weight.shape) for name, weight in weights.items()}
    for name, value in fitting(pretrained, shapes, heads=heads).items():
        weights[name].set_data(mx.nd.array(value))
