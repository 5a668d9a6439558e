"""A model that finds answers: a small one with random weights, or HuggingFace's by name or path."""

from __future__ import annotations

import argparse

import torch
from common.for_torch.encoder import Encoder
from common.settings import sizes
from common.tokens import huggingface
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


def build(settings: argparse.Namespace, vocabulary: int) -> nn.Module:
    """Return the model that the settings name. Without a name, it has random weights for `vocabulary` tokens."""
    if name := settings.pretrained:
        return _Pretrained(huggingface("pretrained", name).AutoModelForQuestionAnswering.from_pretrained(name))
    encoder = Encoder(vocabulary=vocabulary, length=settings.length, **sizes(settings))
    return Bert(encoder, settings.width)
