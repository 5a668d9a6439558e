"""A BERT with its two tasks: a small one from scratch, or HuggingFace's by name or path."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

import torch
from common.encoder import Encoder, sizes
from common.tokens import Tokenizer, Words, huggingface, tokenizer_of
from torch import nn

# Of hidden words [hidden, vocabulary], and of pairs [n, 2]: that the second text does not follow, and that it does.
Scores = tuple[torch.Tensor, torch.Tensor]


class Bert(nn.Module):
    """An encoder with scores for the words at the hidden places, and for whether the second text follows."""

    def __init__(self, encoder: Encoder, width: int, vocabulary: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.transform = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        # A word's scores are read off its own embedding.
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        self.pooler, self.follows = nn.Linear(width, width), nn.Linear(width, 2)

    def forward(self, tokens: torch.Tensor, kinds: torch.Tensor, mask: torch.Tensor, hidden: torch.Tensor) -> Scores:
        states = self.encoder(tokens, kinds, mask)
        words = nn.functional.linear(self.transform(states[hidden]), self.encoder.tokens.weight, self.bias)
        return words, self.follows(torch.tanh(self.pooler(states[:, 0])))


class _Pretrained(nn.Module):
    """HuggingFace's model with the arguments and answers of the one above."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor, kinds: torch.Tensor, mask: torch.Tensor, hidden: torch.Tensor) -> Scores:
        answer = self.model(input_ids=tokens, token_type_ids=kinds, attention_mask=mask)
        # Theirs has the scores in the other order: that the second text follows comes first.
        return answer.prediction_logits[hidden], answer.seq_relationship_logits.flip(-1)


def build(settings: argparse.Namespace, texts: Iterable[str], length: int) -> tuple[Tokenizer, nn.Module]:
    """Return the tokenizer and the model that the settings name; `texts` make a vocabulary where they name none."""
    if name := settings.pretrained:
        model = huggingface("pretrained", name).AutoModelForPreTraining.from_pretrained(name)
        return tokenizer_of("pretrained", name), _Pretrained(model)
    words = tokenizer_of("tokenizer", settings.tokenizer) if settings.tokenizer else Words(texts, settings.vocabulary)
    encoder = Encoder(vocabulary=words.size, length=length, **sizes(settings))
    return words, Bert(encoder, settings.width, words.size)
