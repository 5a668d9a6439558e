"""A Keras model for both pretraining tasks: a small one with random weights, or BERT with HuggingFace's weights."""

from __future__ import annotations

import argparse

import keras
import tensorflow as tf
from common.for_tensorflow.encoder import Encoder, Weight, dense, linear, load, norm
from common.settings import sizes
from common.weights import read
from keras import layers

# Scores of hidden words, [hidden, vocabulary], and of pairs, [n, 2]: "does not follow" and "follows".
Scores = tuple[tf.Tensor, tf.Tensor]


class Bert(keras.Model):
    """An encoder with two heads: it predicts the hidden words, and it decides if the second text follows the first.

    `places` are the indices of the hidden words among all tokens of the batch, [hidden]. `reversed_follows`: the second
    head has HuggingFace's order, "follows" first.
    """

    def __init__(
        self, encoder: Encoder, *, width: int, vocabulary: int, epsilon: float = 1e-5, reversed_follows: bool = False
    ) -> None:
        super().__init__()
        self.encoder, self.width, self.reversed_follows = encoder, width, reversed_follows
        self.transform, self.pooler, self.follows = dense(width, width), dense(width, width), dense(2, width)
        self.norm = layers.LayerNormalization(epsilon=epsilon)
        # The head uses the embeddings as its weights, as in the paper, and only has its own bias.
        self.bias = self.add_weight(shape=(vocabulary,), initializer="zeros", name="bias")

    def call(
        self, tokens: tf.Tensor, kinds: tf.Tensor, mask: tf.Tensor, places: tf.Tensor, training: bool = False
    ) -> Scores:
        states = self.encoder(tokens, kinds, mask, training=training)
        hidden = tf.gather(tf.reshape(states, [-1, self.width]), places)
        hidden = self.norm(keras.activations.gelu(self.transform(hidden), approximate=False))
        embeddings = tf.convert_to_tensor(self.encoder.tokens.embeddings)
        words = tf.matmul(hidden, tf.cast(embeddings, hidden.dtype), transpose_b=True)
        follows = tf.cast(self.follows(tf.tanh(self.pooler(states[:, 0]))), tf.float32)
        if self.reversed_follows:
            follows = follows[:, ::-1]
        return tf.cast(words, tf.float32) + tf.cast(self.bias, tf.float32), follows

    def weights_by_name(self) -> dict[str, Weight]:
        """Return all weights by HuggingFace's names."""
        words = "cls.predictions"
        return {
            **self.encoder.weights_by_name(),
            **linear(self.transform, f"{words}.transform.dense"),
            **norm(self.norm, f"{words}.transform.LayerNorm"),
            f"{words}.bias": Weight(self.bias),
            **linear(self.pooler, "bert.pooler.dense"),
            **linear(self.follows, "cls.seq_relationship"),
        }


def build(settings: argparse.Namespace, vocabulary: int, length: int) -> Bert:
    """Return the model that the settings name. Without a name, it has random weights for `vocabulary` tokens."""
    name = settings.pretrained
    pretrained = read("pretrained", name) if name else None
    arguments = pretrained.sizes if pretrained else {"vocabulary": vocabulary, "length": length, **sizes(settings)}
    heads = {"epsilon": arguments["epsilon"], "reversed_follows": True} if pretrained else {}
    model = Bert(Encoder(**arguments), width=arguments["width"], vocabulary=arguments["vocabulary"], **heads)
    # Keras creates the weights in the first call.
    tokens, kinds, mask = (tf.zeros((1, length), kind) for kind in (tf.int32, tf.int32, tf.bool))
    model(tokens, kinds, mask, tf.zeros((1,), tf.int32))
    if pretrained:
        load(model.weights_by_name(), pretrained, heads=("cls.", "bert.pooler."))
    return model
