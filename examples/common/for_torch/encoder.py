"""BERT's encoder with random initial weights: every token attends to all tokens of its text."""

from __future__ import annotations

import torch
from torch import nn


class Encoder(nn.Module):
    """Embeddings and Transformer layers.

    Inputs are [n, length]: `tokens`, `kinds` (0 or 1, the text that a token belongs to) and `mask` (True for text,
    False for padding). Outputs are states, [n, length, width].
    """

    def __init__(
        self, *, vocabulary: int, length: int, width: int, depth: int, heads: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.tokens, self.kinds = nn.Embedding(vocabulary, width), nn.Embedding(2, width)
        self.positions, self.norm = nn.Embedding(length, width), nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)
        shape = {"d_model": width, "nhead": heads, "dim_feedforward": 4 * width, "dropout": dropout}
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(**shape, activation="gelu", batch_first=True) for _ in range(depth)
        )
        # Torch draws embeddings with a deviation of 1; BERT's is 0.02.
        for embedding in (self.tokens, self.kinds, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens: torch.Tensor, kinds: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        states = self.tokens(tokens) + self.kinds(kinds) + self.positions.weight[: tokens.shape[1]]
        states = self.dropout(self.norm(states))
        # Torch's mask marks the tokens to ignore, ours the tokens to use.
        for layer in self.layers:
            states = layer(states, src_key_padding_mask=~mask)
        return states
