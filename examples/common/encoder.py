"""BERT's encoder from scratch: a state for each token, which looks at all others."""

from __future__ import annotations

import argparse

import torch
from torch import nn


class Encoder(nn.Module):
    """`tokens`, `kinds` (0 or 1) and `mask` (True where there is text) are [n, length]; states [n, length, width]."""

    def __init__(
        self, *, vocabulary: int, length: int, width: int, depth: int, heads: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.tokens, self.kinds = nn.Embedding(vocabulary, width), nn.Embedding(2, width)
        self.places, self.norm = nn.Embedding(length, width), nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)
        shape = {"d_model": width, "nhead": heads, "dim_feedforward": 4 * width, "dropout": dropout}
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(**shape, activation="gelu", batch_first=True) for _ in range(depth)
        )
        for each in (self.tokens, self.kinds, self.places):
            nn.init.normal_(each.weight, std=0.02)

    def forward(self, tokens: torch.Tensor, kinds: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        states = self.tokens(tokens) + self.kinds(kinds) + self.places.weight[: tokens.shape[1]]
        states = self.dropout(self.norm(states))
        for layer in self.layers:
            states = layer(states, src_key_padding_mask=~mask)
        return states


def add_sizes(parser: argparse.ArgumentParser) -> None:
    """Add the hyperparameters of an encoder from scratch."""
    for name, size in (("vocabulary", 4000), ("width", 64), ("depth", 2), ("heads", 4)):
        parser.add_argument(f"--{name}", type=int, default=size, help="of a model from scratch")
    parser.add_argument("--dropout", type=float, default=0.0, help="of a model from scratch")


def sizes(settings: argparse.Namespace) -> dict[str, float]:
    """Return what `add_sizes` added, but for the vocabulary, which is the tokenizer's."""
    return {name: getattr(settings, name) for name in ("width", "depth", "heads", "dropout")}
