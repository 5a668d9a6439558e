"""A model that finds answers: a small one with random weights, or HuggingFace's by name or path."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

import torch
from common.encoder import Encoder, sizes
from common.tokens import Tokenizer, Words, huggingface, tokenizer_of
from torch import nn

Scores = tuple[torch.Tensor, torch.Tensor]


class Bert(nn.Module):
    """An encoder with two scores per token: one for the begin of an answer, and one for its end."""

    def __init__(self, encoder: Encoder, width: int) -> None:
        super().__init__()
        self.encoder, self.scores = encoder, nn.Linear(width, 2)

    def forward(self, tokens: torch.Tensor, kinds: torch.Tensor, mask: torch.Tensor) -> Scores:
        begins, ends = self.scores(self.encoder(tokens, kinds, mask)).unbind(dim=-1)
        return begins, ends


class _Pretrained(nn.Module):
    """HuggingFace's model with the arguments and results of `Bert`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor, kinds: torch.Tensor, mask: torch.Tensor) -> Scores:
        outputs = self.model(input_ids=tokens, token_type_ids=kinds, attention_mask=mask)
        return outputs.start_logits, outputs.end_logits


def build(settings: argparse.Namespace, texts: Iterable[str]) -> tuple[Tokenizer, nn.Module]:
    """Return the tokenizer and the model that the settings name. Without a name, the vocabulary is from `texts`."""
    if name := settings.pretrained:
        model = huggingface("pretrained", name).AutoModelForQuestionAnswering.from_pretrained(name)
        return tokenizer_of("pretrained", name), _Pretrained(model)
    words = Words(texts, settings.vocabulary)
    encoder = Encoder(vocabulary=words.size, length=settings.length, **sizes(settings))
    return words, Bert(encoder, settings.width)
