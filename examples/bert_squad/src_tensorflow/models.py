"""A Keras model that finds answers: a small one with random weights, or BERT with HuggingFace's weights."""

from __future__ import annotations

import argparse

import keras
import tensorflow as tf
from common.for_tensorflow.encoder import Encoder, Weight, dense, linear, load
from common.settings import sizes
from common.weights import read

Scores = tuple[tf.Tensor, tf.Tensor]


class Bert(keras.Model):
    """An encoder with two scores per token: one for the begin of an answer, and one for its end."""

    def __init__(self, encoder: Encoder, width: int) -> None:
        super().__init__()
        self.encoder, self.scores = encoder, dense(2, width)

    def call(self, tokens: tf.Tensor, kinds: tf.Tensor, mask: tf.Tensor, training: bool = False) -> Scores:
        scores = tf.cast(self.scores(self.encoder(tokens, kinds, mask, training=training)), tf.float32)
        return scores[..., 0], scores[..., 1]

    def weights_by_name(self) -> dict[str, Weight]:
        """Return all weights by HuggingFace's names."""
        return {**self.encoder.weights_by_name(), **linear(self.scores, "qa_outputs")}


def build(settings: argparse.Namespace, vocabulary: int) -> Bert:
    """Return the model that the settings name. Without a name, it has random weights for `vocabulary` tokens."""
    name = settings.pretrained
    pretrained = read("pretrained", name) if name else None
    arguments = pretrained.sizes if pretrained else {"vocabulary": vocabulary, "length": settings.length}
    if not pretrained:
        arguments |= sizes(settings)
    model = Bert(Encoder(**arguments), arguments["width"])
    # Keras creates the weights in the first call.
    model(*(tf.zeros((1, settings.length), kind) for kind in (tf.int32, tf.int32, tf.bool)))
    if pretrained:
        load(model.weights_by_name(), pretrained, heads=("qa_outputs.",))
    return model
