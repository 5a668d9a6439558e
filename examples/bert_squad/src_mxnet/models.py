"""A Gluon model that finds answers: a small one with random weights, or BERT with HuggingFace's weights."""

from __future__ import annotations

import argparse
from typing import Any

import mxnet as mx
from common.for_mxnet.encoder import Encoder, Weights, dense, linear, load
from common.settings import sizes
from common.weights import read
from mxnet import gluon


class Bert(gluon.Block):
    """An encoder with two scores per token: one for the begin of an answer, and one for its end."""

    def __init__(self, encoder: Encoder, width: int) -> None:
        super().__init__()
        with self.name_scope():
            self.encoder, self.scores = encoder, dense(width, 2)

    def forward(self, tokens: Any, kinds: Any, mask: Any) -> tuple[Any, Any]:
        scores = self.scores(self.encoder(tokens, kinds, mask))
        return scores[:, :, 0], scores[:, :, 1]

    def weights_by_name(self) -> Weights:
        """Return all weights by HuggingFace's names."""
        return {**self.encoder.weights_by_name(), **linear(self.scores, "qa_outputs")}


def build(settings: argparse.Namespace, vocabulary: int, device: mx.Context) -> Bert:
    """Return the model that the settings name. Without a name, it has random weights for `vocabulary` tokens."""
    name = settings.pretrained
    pretrained = read("pretrained", name) if name else None
    arguments = pretrained.sizes if pretrained else {"vocabulary": vocabulary, "length": settings.length}
    if not pretrained:
        arguments.update(sizes(settings))
    model = Bert(Encoder(**arguments), arguments["width"])
    model.initialize(ctx=device)
    if pretrained:
        load(model.weights_by_name(), pretrained, heads=("qa_outputs.",))
    return model
