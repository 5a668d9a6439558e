"""Layers with their own state, structure or random numbers."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.parallel.torch.model_parallel.models.case import CLASSES, WIDTH, Case, images, sequences
from tests.parallel.torch.model_parallel.models.flow import Nested


class Normed(nn.Module):
    """BatchNorm's statistics live with its parameters, and add up in the order of the microbatches."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 8)
        # Over tokens too: a microbatch may be one row.
        self.norm = nn.BatchNorm1d(8)
        self.second = nn.Linear(8, 8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(self.first(x).transpose(1, 2)).relu()
        return self.head(self.second(h.transpose(1, 2))).mean(1)


class Dropped(nn.Module):
    """Dropout inside modules, in the code that runs on every rank, and random numbers drawn there."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(WIDTH, 16), nn.Dropout(0.5))
        self.second = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5))
        self.third = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5))
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = nn.functional.dropout(self.first(x), 0.2) * torch.rand(16)
        return self.head(self.third(self.second(h) + torch.rand(16)))


class Transformer(nn.Module):
    """torch's own encoder layers, with a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 2, 12, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        return self.head(self.norm(x)).mean(1)


class Attention(nn.Module):
    """Attention written by hand, between projections that may lie on four ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            part(x).unflatten(-1, (2, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        h = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(h.transpose(1, 2).flatten(2)).mean(1)


class ConvNet(nn.Module):
    """Convolutions with BatchNorm, a shortcut over them, and pooling in between."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
        self.body = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4))
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Linear(4 * 4 * 4, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.stem(x)
        return self.head(self.pool(torch.relu(h + self.body(h))).flatten(1))


class Recurrent(nn.Module):
    """An LSTM with nested tuples as state, a cell stepped by the parent's loop, and dropout switched off."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.LSTM(WIDTH, 5, num_layers=2, batch_first=True)
        self.cell = nn.GRUCell(5, 5)
        self.middle = nn.Linear(5, 5)
        self.head = nn.Linear(5, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states, (h, _) = self.inner(x)
        hidden = h[-1]
        for token in states.unbind(1):
            hidden = self.cell(token, hidden)
        return self.head(self.middle(hidden))


class Checkpointed(Nested):
    """torch's own checkpointing in the code of the model, around a module and a function that may be split."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = checkpoint(self.block, x, use_reentrant=False)
        return checkpoint(lambda h: self.head(torch.tanh(h)), h.clone(), use_reentrant=True)


def _checkpoint(module: nn.Module) -> None:
    import herringbone_parallel.torch.model_parallel.api as smp

    smp.set_activation_checkpointing(module.block)


class Parametrized(nn.Module):
    """Weights that are computed from others at each use."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, 8))
        self.second = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))
        self.third = nn.Linear(8, 8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.third(self.second(torch.tanh(self.first(x))))))


# Not among CASES: torch alone draws in the order of execution, which no other process shares.
DROPPED = Case(Dropped)

CASES = {
    "Normed": Case(Normed, sequences),
    "Transformer": Case(Transformer, sequences),
    "Attention": Case(Attention, sequences),
    "ConvNet": Case(ConvNet, images),
    "Recurrent": Case(Recurrent, sequences),
    "Checkpointed": Case(Checkpointed),
    "CheckpointedByUs": Case(Nested, prepare=_checkpoint),
    "Parametrized": Case(Parametrized),
}
