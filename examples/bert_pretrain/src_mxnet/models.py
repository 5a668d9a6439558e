"""A Gluon model for both pretraining tasks: a small one with random weights, or BERT with HuggingFace's weights."""

from __future__ import annotations

import argparse
from typing import Any

import mxnet as mx
from common.for_mxnet.encoder import Encoder, Weights, dense, gelu, linear, load, norm
from common.settings import sizes
from common.weights import read
from mxnet import gluon
from mxnet.gluon import nn


class Bert(gluon.Block):
    """An encoder with two heads: it predicts the hidden words, and it decides if the second text follows the first.

    `places` are the indices of the hidden words among all tokens of the batch, [hidden]. `reversed_follows`: the second
    head has HuggingFace's order, "follows" first.
    """

    def __init__(
        self, encoder: Encoder, *, width: int, vocabulary: int, epsilon: float = 1e-5, reversed_follows: bool = False
    ) -> None:
        super().__init__()
        self._width, self._vocabulary, self._reversed = width, vocabulary, reversed_follows
        with self.name_scope():
            self.encoder = encoder
            self.transform, self.pooler, self.follows = dense(width, width), dense(width, width), dense(width, 2)
            self.norm = nn.LayerNorm(epsilon=epsilon, in_channels=width)
            # The head uses the embeddings as its weights, as in the paper, and only has its own bias.
            self.bias = self.params.get("bias", shape=(vocabulary,), init="zeros")

    def forward(self, tokens: Any, kinds: Any, mask: Any, places: Any) -> tuple[Any, Any]:
        states = self.encoder(tokens, kinds, mask)
        hidden = mx.nd.take(states.reshape((-1, self._width)), places)
        hidden = self.norm(gelu(self.transform(hidden)))
        embeddings, bias = self.encoder.tokens.weight.data(), self.bias.data()
        words = mx.nd.FullyConnected(hidden, embeddings, bias, num_hidden=self._vocabulary)
        follows = self.follows(mx.nd.tanh(self.pooler(states[:, 0])))
        return words, mx.nd.flip(follows, axis=1) if self._reversed else follows

    def weights_by_name(self) -> Weights:
        """Return all weights by HuggingFace's names."""
        words = "cls.predictions"
        return {
            **self.encoder.weights_by_name(),
            **linear(self.transform, f"{words}.transform.dense"),
            **norm(self.norm, f"{words}.transform.LayerNorm"),
            f"{words}.bias": self.bias,
            **linear(self.pooler, "bert.pooler.dense"),
            **linear(self.follows, "cls.seq_relationship"),
        }


def build(settings: argparse.Namespace, vocabulary: int, length: int, device: mx.Context) -> Bert:
    """Return the model that the settings name. Without a name, it has random weights for `vocabulary` tokens."""
    name = settings.pretrained
    pretrained = read("pretrained", name) if name else None
    arguments = pretrained.sizes if pretrained else {"vocabulary": vocabulary, "length": length, **sizes(settings)}
    heads = {"epsilon": arguments["epsilon"], "reversed_follows": True} if pretrained else {}
    model = Bert(Encoder(**arguments), width=arguments["width"], vocabulary=arguments["vocabulary"], **heads)
    model.initialize(ctx=device)
    if pretrained:
        load(model.weights_by_name(), pretrained, heads=("cls.", "bert.pooler."))
    return model
