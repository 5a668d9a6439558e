"""A BERT for both pretraining tasks: a small one with random weights, or HuggingFace's by name or path."""

from __future__ import annotations

import argparse

import torch
from common.for_torch.encoder import Encoder
from common.settings import sizes
from common.tokens import huggingface
from torch import nn

# Scores of hidden words, [hidden, vocabulary], and of pairs, [n, 2]: "does not follow" and "follows".
Scores = tuple[torch.Tensor, torch.Tensor]


class Bert(nn.Module):
    """An encoder with two heads: it predicts the hidden words, and it decides if the second text follows the first.

    `places` are the indices of the hidden words among all tokens of the batch, [hidden].
    """

    def __init__(self, encoder: Encoder, width: int, vocabulary: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.transform = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        # The head uses the embeddings as its weights, as in the paper, and only has its own bias.
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        self.pooler, self.follows = nn.Linear(width, width), nn.Linear(width, 2)

    def forward(self, tokens: torch.Tensor, kinds: torch.Tensor, mask: torch.Tensor, places: torch.Tensor) -> Scores:
        states = self.encoder(tokens, kinds, mask)
        words = nn.functional.linear(
            self.transform(states.flatten(0, 1)[places]), self.encoder.tokens.weight, self.bias
        )
        return words, self.follows(torch.tanh(self.pooler(states[:, 0])))


class _Pretrained(nn.Module):
    """HuggingFace's model with the arguments and results of `Bert`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor, kinds: torch.Tensor, mask: torch.Tensor, places: torch.Tensor) -> Scores:
        outputs = self.model(input_ids=tokens, token_type_ids=kinds, attention_mask=mask)
        # HuggingFace's scores have the other order: "follows" comes first.
        return outputs.prediction_logits.flatten(0, 1)[places], outputs.seq_relationship_logits.flip(-1)


def build(settings: argparse.Namespace, vocabulary: int, length: int) -> nn.Module:
    """Return the model that the settings name. Without a name, it has random weights for `vocabulary` tokens."""
    if name := settings.pretrained:
        return _Pretrained(huggingface("pretrained", name).AutoModelForPreTraining.from_pretrained(name))
    encoder = Encoder(vocabulary=vocabulary, length=length, **sizes(settings))
    return Bert(encoder, settings.width, vocabulary)
