"""Models that a tracer cannot split, or that tempt a runtime into wrong gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

BATCH, WIDTH, CLASSES = 8, 6, 4


def _inputs() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(11)
    return torch.randn(BATCH, WIDTH, generator=generator), torch.randint(0, CLASSES, (BATCH,), generator=generator)


class Chain(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16), nn.Linear(16, CLASSES)
        )


class Tied(nn.Module):
    """Embedding and head share one parameter, first and last in the order of definition."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(WIDTH, WIDTH, bias=False)
        self.middle = nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, WIDTH))
        self.head = nn.Linear(WIDTH, WIDTH, bias=False)
        self.head.weight = self.embed.weight
        self.out = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.head(self.middle(self.embed(x))))


class Residual(nn.Module):
    """Values of the first rank are used again after the second."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 12)
        self.second = nn.Linear(12, 12)
        self.third = nn.Linear(12, 12)
        self.head = nn.Linear(12, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.first(x)
        b = self.second(torch.relu(a)) + a
        c = self.third(b) + a * b
        return self.head(c)


class Revisited(nn.Module):
    """One module is visited before and after the others, under a branch."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(WIDTH, WIDTH)
        self.other = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.shared(x))
        h = torch.tanh(self.other(h))
        if h.shape[0] > 0:
            h = self.shared(h)
        return self.head(h)


class BranchOnData(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.positive = nn.Linear(WIDTH, WIDTH)
        self.negative = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        h = self.positive(h) if h.sum() > 0 else self.negative(h)
        return self.head(h)


class LoopOnData(nn.Module):
    """The number of passes depends on a value."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.body = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        for _ in range(1 + int(h.abs().sum().item()) % 3):
            h = torch.tanh(self.body(h))
        return self.head(h)


class OwnParameter(nn.Module):
    """A module split inside that also has parameters of its own, one used alone before it meets data."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.randn(12))
        self.scale = nn.Parameter(torch.ones(12))
        self.first = nn.Linear(WIDTH, 12)
        self.second = nn.Linear(12, 12)
        self.head = nn.Linear(12, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x) + self.shift
        return self.head(self.second(h) * torch.sigmoid(self.scale))


class BorrowedWeight(nn.Module):
    """The code of the parent uses a child's weight as a function argument."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(WIDTH, WIDTH, bias=False)
        self.middle = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.middle(self.embed(x)))
        return self.head(nn.functional.linear(h, self.embed.weight))


@dataclass
class Both:
    left: torch.Tensor
    right: dict[str, torch.Tensor]


class Structured(nn.Module):
    """Dataclass, dict, tuple and None travel between the parts."""

    class First(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(WIDTH, 8)
            self.b = nn.Linear(WIDTH, 8)

        def forward(self, x: torch.Tensor) -> Both:
            return Both(self.a(x), {"b": self.b(x)})

    class Second(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.c = nn.Linear(8, 8)

        def forward(self, both: Both, *, mask: None = None) -> tuple[torch.Tensor, None]:
            return self.c(both.left * both.right["b"]), mask

    def __init__(self) -> None:
        super().__init__()
        self.first = self.First()
        self.second = self.Second()
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        both = self.first(x)
        h, nothing = self.second(both, mask=None)
        assert nothing is None
        return self.head(h + both.left)


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 8)
        self.second = nn.Linear(8, 8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        h += 1
        h = self.second(h).relu_()
        h = h * 1.5
        h[:, 0] = 0.5
        h.add_(2)
        return self.head(h)


class Frozen(Chain):
    """The first layer is not trained; its output still flows into what is."""

    def __init__(self) -> None:
        super().__init__()
        self[0].requires_grad_(False)


class UnusedOutput(nn.Module):
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(WIDTH, 8)
            self.b = nn.Linear(WIDTH, 8)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.a(x), self.b(x)

    def __init__(self) -> None:
        super().__init__()
        self.two = self.Two()
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        used, _ = self.two(x)
        return self.head(used)


class Normed(nn.Module):
    """BatchNorm's statistics live with its parameters; with one microbatch they equal the whole model's."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 8)
        self.norm = nn.BatchNorm1d(8)
        self.second = nn.Linear(8, 8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.second(self.norm(self.first(x)).relu()))


class Dropped(nn.Module):
    """Dropout inside modules, in the code that runs on every rank, and random numbers drawn there."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(WIDTH, 16), nn.Dropout(0.5))
        self.second = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5))
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = nn.functional.dropout(self.first(x), 0.2) * torch.rand(16)
        return self.head(self.second(h) + torch.rand(16))


ALL: dict[str, Callable[[], nn.Module]] = {
    model.__name__: model
    for model in (
        Chain, Tied, Residual, Revisited, BranchOnData, LoopOnData, OwnParameter, BorrowedWeight, Structured, InPlace,
        Frozen, UnusedOutput,
    )
}  # fmt: skip


def build(name: str) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(5)
    model = {**ALL, "Normed": Normed, "Dropped": Dropped}[name]()
    return model, *_inputs()
