"""A GPT on bytes: the model, the text and the settings of both scripts."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

BYTES = 256


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--save-every", type=int, default=100, help="steps between two checkpoints of train.py")
    parser.add_argument("--global-batch", type=int, default=16, help="windows of one step on all replicas together")
    parser.add_argument("--context", type=int, default=64, help="bytes per window")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--warmup", type=int, default=10, help="steps")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_known_args()[0]


class Block(nn.Module):
    """Causal attention, then a network that works on each position, both with a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_network = nn.LayerNorm(width), nn.LayerNorm(width)
        # No bias: softmax cancels a bias of the keys, so its gradient would be rounding errors only.
        self.attention_inputs = nn.Linear(width, 3 * width, bias=False)
        self.attention_output = nn.Linear(width, width)
        self.network = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        batch, length, width = states.shape
        inputs = self.attention_inputs(self.before_attention(states)).view(batch, length, 3, self.heads, -1)
        query, key, value = inputs.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        states = states + self.attention_output(attended.transpose(1, 2).reshape(batch, length, width))
        return states + self.network(self.before_network(states))


class GPT(nn.Module):
    """Predicts the next byte. `tokens` is [batch, length]; the scores are [batch, length, 256]."""

    def __init__(self, *, width: int, depth: int, heads: int, context: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(BYTES, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, BYTES)
        for layer in self.modules():
            if isinstance(layer, (nn.Linear, nn.Embedding)):
                nn.init.normal_(layer.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        states = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(states)))


def build(settings: argparse.Namespace) -> GPT:
    """Build the same model in every process, from the seed."""
    torch.manual_seed(settings.seed)
    return GPT(width=settings.width, depth=settings.depth, heads=settings.heads, context=settings.context)


def loss_of(predicted: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(predicted.flatten(0, 1), targets.flatten())


class Text:
    """All `.txt` and `.py` files of the channel, joined to one row of bytes."""

    def __init__(self, settings: argparse.Namespace) -> None:
        folder = Path(os.environ["SM_CHANNEL_TRAINING"])
        files = sorted(path for path in folder.rglob("*") if path.suffix in (".txt", ".py"))
        content = b"\n".join(path.read_bytes() for path in files)
        self._context, self._batch, self._seed = settings.context, settings.global_batch, settings.seed
        if len(content) <= self._context:
            raise ValueError(
                f"{folder}: {len(content)} bytes in {len(files)} .txt and .py files are too few for one window of"
                f" {self._context} bytes and the byte after it; add text or lower --context"
            )
        self._bytes = torch.frombuffer(bytearray(content), dtype=torch.uint8)

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the windows of a step and their targets, the same text one byte later.

        The windows are the same on any number of ranks, because the seed and the step alone decide them.
        """
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + step)
        starts = torch.randint(len(self._bytes) - self._context, (self._batch,), generator=generator)
        indices = starts[:, None] + torch.arange(self._context + 1)
        windows = self._bytes[indices].long()
        return windows[:, :-1], windows[:, 1:]
