"""A BERT for both pretraining tasks: a small one with random weights, or HuggingFace's by name or path."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

import torch
from common.encoder import Encoder, sizes
from common.tokens import Tokenizer, Words, huggingface, tokenizer_of
from torch import nn

# Scores of hidden words, [hidden, vocabulary], and of pairs, [n, 2]: "does not follow" and "follows".
Scores = tuple[torch.Tensor, torch.Tensor]


class Bert(nn.Module):
    """An encoder with two heads: it predicts the hidden words, and it decides if the second text follows the first."""

    def __init__(self, encoder: Encoder, width: int, vocabulary: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.transform = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        # The head uses the embeddings as its weights, as in the paper, and only has its own bias.
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        self.pooler, self.follows = nn.Linear(width, width), nn.Linear(width, 2)

    def forward(self, tokens: torch.Tensor, kinds: torch.Tensor, mask: torch.Tensor, hidden: torch.Tensor) -> Scores:
        states = self.encoder(tokens, kinds, mask)
        words = nn.functional.linear(self.transform(states[hidden]), self.encoder.tokens.weight, self.bias)
        return words, self.follows(torch.tanh(self.pooler(states[:, 0])))


class _Pretrained(nn.Module):
    """HuggingFace's model with the arguments and results of `Bert`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor, kinds: torch.Tensor, mask: torch.Tensor, hidden: torch.Tensor) -> Scores:
        outputs = self.model(input_ids=tokens, token_type_ids=kinds, attention_mask=mask)
        # HuggingFace's scores have the other order: "follows" comes first.
        return outputs.prediction_logits[hidden], outputs.seq_relationship_logits.flip(-1)


def build(settings: argparse.Namespace, texts: Iterable[str], length: int) -> tuple[Tokenizer, nn.Module]:
    """Return the tokenizer and the model that the settings name. By default, `texts` make the vocabulary."""
    if name := settings.pretrained:
        model = huggingface("pretrained", name).AutoModelForPreTraining.from_pretrained(name)
        return tokenizer_of("pretrained", name), _Pretrained(model)
    words = tokenizer_of("tokenizer", settings.tokenizer) if settings.tokenizer else Words(texts, settings.vocabulary)
    encoder = Encoder(vocabulary=words.size, length=length, **sizes(settings))
    return words, Bert(encoder, settings.width, words.size)
