"""Models that use a parameter, a module or a buffer in more than one place."""

from __future__ import annotations

import torch
from torch import nn

from tests.parallel.torch.model_parallel.models.case import CLASSES, TOKENS, VOCABULARY, WIDTH, Case, sequences, tokens
from tests.parallel.torch.model_parallel.models.structures import predict_tokens


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


class OwnParameter(nn.Module):
    """A split module that also has parameters of its own, one of which is used before it is combined with data."""

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
        self.after = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.middle(self.embed(x)))
        return self.head(self.after(nn.functional.linear(h, self.embed.weight)))


class SharedModule(nn.Module):
    """One module object is a child of two parents."""

    class Wrap(nn.Module):
        def __init__(self, shared: nn.Module) -> None:
            super().__init__()
            self.own = nn.Linear(WIDTH, WIDTH)
            self.shared = shared

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.shared(self.own(x)))

    def __init__(self) -> None:
        super().__init__()
        shared = nn.Linear(WIDTH, WIDTH)
        self.first, self.second = self.Wrap(shared), self.Wrap(shared)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.second(self.first(x)))


class ReachedInto(nn.Module):
    """The parent's code calls the parts of its child and not the child; the first part gets the script's input."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Tied()
        self.head = nn.Linear(CLASSES, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.encoder.middle(self.encoder.embed(x))
        return self.head(self.encoder.out(h) + self.encoder(x))


class LanguageModel(nn.Module):
    """Tokens in, tied embedding and head, positions that come from a buffer and need no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(TOKENS, WIDTH)
        self.register_buffer("order", torch.arange(TOKENS), persistent=False)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        h = self.embed(words) + self.positions(self.order)
        return self.head(self.norm(self.second(torch.tanh(self.first(h)))))


class RootBuffers(nn.Module):
    """Code that runs on every rank reads buffers of its own, and counts in one."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.linspace(0, 1, TOKENS * WIDTH).reshape(TOKENS, WIDTH))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.third = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        h = self.second(self.first(x) + self.table)
        return self.head(self.third(h * self.table[-1]).mean(1))


class ParameterLists(nn.Module):
    """Parameters in lists and dicts, used by the code of the parent."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ParameterList(nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH) for _ in range(2))
        self.gates = nn.ParameterDict({"in": nn.Parameter(torch.ones(WIDTH)), "out": nn.Parameter(torch.ones(WIDTH))})
        self.body = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * self.gates["in"]
        for weight in self.layers:
            x = x + torch.tanh(x @ weight)
        return self.head(self.body(x) * self.gates["out"])


CASES = {
    **{
        module.__name__: Case(module)
        for module in (Tied, OwnParameter, BorrowedWeight, SharedModule, ParameterLists, ReachedInto)
    },
    "LanguageModel": Case(LanguageModel, tokens, predict_tokens),
    "RootBuffers": Case(RootBuffers, sequences),
}
