"""The models of the benchmark: a residual convolutional net of 9.6 MB and a small BERT of 29 MB, in plain torch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

Loss = Callable[[nn.Module], torch.Tensor]


class Residual(nn.Module):
    """Two convolutions with a residual connection. The first one halves the image if `stride` is 2."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = nn.functional.relu(self.first_norm(self.first(x)))
        return nn.functional.relu(self.second_norm(self.second(inner)) + self.shortcut(x))


class Bert(nn.Module):
    """Four encoder layers of width 256, a vocabulary of 16,000, and a head with scores for a start and an end."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(16_000, 256)
        self.positions = nn.Embedding(128, 256)
        layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, activation="gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.span = nn.Linear(256, 2)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(words.shape[1])
        return self.span(self.layers(self.words(words) + self.positions(positions)))


def conv(rank: int) -> tuple[nn.Module, Loss]:
    """Build the residual net, and its loss on a batch that differs between ranks."""
    blocks = [Residual(32, 64, 2), Residual(64, 128, 2), Residual(128, 192, 2), Residual(192, 320, 2)]
    net = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(320, 10)
    )
    torch.manual_seed(rank)
    images, labels = torch.randn(16, 3, 32, 32), torch.randint(10, (16,))
    return net, lambda model: nn.functional.cross_entropy(model(images), labels)


def bert(rank: int) -> tuple[nn.Module, Loss]:
    """Build the BERT, and its loss on a batch that differs between ranks."""
    net = Bert()
    torch.manual_seed(rank)
    words, spans = torch.randint(16_000, (8, 64)), torch.randint(64, (8, 2))
    return net, lambda model: nn.functional.cross_entropy(model(words), spans)


MODELS = {"conv": conv, "bert": bert}


def build(name: str, rank: int) -> tuple[nn.Module, Loss]:
    """Return the model, which is the same on every rank, and its loss on this rank's batch."""
    torch.manual_seed(0)
    return MODELS[name](rank)
