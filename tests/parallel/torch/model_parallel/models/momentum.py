"""Momentum encoders that a forward updates without gradients, each in its own spelling."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, ClassVar

import torch
from torch import nn

from tests.parallel.torch.model_parallel.models.kept import WIDTH, Net, Placed, Tensor

KEEP = 0.6
Write = Callable[[Tensor, Tensor], Any]
Update = Callable[[nn.Module, nn.Module], None]


class Encoder(nn.Module):
    """Two layers, on the first and the last partition, or on the second and the first one if `crossed`."""

    def __init__(self, placed: Placed, last: int, *, crossed: bool = False) -> None:
        super().__init__()
        with placed(int(crossed)):
            self.a = nn.Linear(WIDTH, WIDTH, bias=False)
        with placed(0 if crossed else last):
            self.b = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.tanh(self.a(x)))


def each(write: Write) -> Update:
    def update(encoder: nn.Module, momentum: nn.Module) -> None:
        for query, key in zip(encoder.parameters(), momentum.parameters(), strict=True):
            write(query, key)

    return update


def assigned(query: Tensor, key: Tensor) -> None:
    key.data = key.data * KEEP + query.data * (1 - KEEP)


def assigned_twice(query: Tensor, key: Tensor) -> None:
    old = key.data
    key.data = query.data * (1 - KEEP)
    key.add_(old, alpha=KEEP)


def augmented(query: Tensor, key: Tensor) -> None:
    key *= KEEP
    key += (1 - KEEP) * query


def frozen_again(query: Tensor, key: Tensor) -> None:
    key.requires_grad = False
    key.requires_grad_(False).lerp_(query, 1 - KEEP)


def named(encoder: nn.Module, momentum: nn.Module) -> None:
    queries = dict(encoder.named_parameters())
    for name, key in momentum.named_parameters():
        key.mul_(KEEP).add_(queries[name], alpha=1 - KEEP)


def foreach(encoder: nn.Module, momentum: nn.Module) -> None:
    keys = list(momentum.parameters())
    torch._foreach_mul_(keys, KEEP)
    torch._foreach_add_(keys, list(encoder.parameters()), alpha=1 - KEEP)


def of_state(encoder: nn.Module, momentum: nn.Module) -> None:
    queries = encoder.state_dict()
    for name, key in momentum.state_dict().items():
        key.copy_(KEEP * key + (1 - KEEP) * queries[name])


def loaded(encoder: nn.Module, momentum: nn.Module) -> None:
    queries, keys = encoder.state_dict(), momentum.state_dict()
    momentum.load_state_dict({name: KEEP * keys[name] + (1 - KEEP) * queries[name] for name in keys})


SPELLINGS: dict[str, Update] = {
    "data_mul_add": each(lambda q, k: k.data.mul_(KEEP).add_(q.data, alpha=1 - KEEP)),
    "data_lerp": each(lambda q, k: k.data.lerp_(q.data, 1 - KEEP)),
    "assigned": each(assigned),
    "assigned_twice": each(assigned_twice),
    "mul_add": each(lambda q, k: k.mul_(KEEP).add_(q, alpha=1 - KEEP)),
    "augmented": each(augmented),
    "copy": each(lambda q, k: k.copy_(KEEP * k + (1 - KEEP) * q)),
    "detach": each(lambda q, k: k.detach().copy_(torch.lerp(k, q.detach(), 1 - KEEP))),
    "setitem": each(lambda q, k: k.data.__setitem__(slice(None), KEEP * k.data + (1 - KEEP) * q.data)),
    "frozen_again": each(frozen_again),
    "named": named,
    "foreach": foreach,
    "foreach_lerp": lambda q, k: torch._foreach_lerp_([*k.parameters()], [*q.parameters()], 1 - KEEP),
    "of_state": of_state,
    "loaded": loaded,
}


class Momentum(Net):
    """Two momentum encoders; every forward updates them, between the queries and the keys."""

    spellings: ClassVar[dict[str, Update]] = dict.fromkeys(["lerp", "crossed"], each(lambda q, k: k.lerp_(q, 1 - KEEP)))

    def __init__(self, placed: Placed = lambda _: nullcontext(), last: int = 1) -> None:
        nn.Module.__init__(self)
        self.encoder = Encoder(placed, last)
        # Every other one has its layers on other partitions than the encoder.
        self.momentum = nn.ModuleDict(
            {name: Encoder(placed, last, crossed=number % 2 == 1) for number, name in enumerate(self.spellings)}
        )
        for momentum in self.momentum.values():
            each(lambda q, k: k.data.copy_(q.data))(self.encoder, momentum)
            momentum.requires_grad_(False)

    @torch.no_grad()
    def update(self) -> None:
        for name, momentum in self.momentum.items():
            self.spellings[name](self.encoder, momentum)

    def keys(self, x: Tensor) -> Tensor:
        return torch.stack([momentum(x) for momentum in self.momentum.values()]).mean(0)

    def forward(self, x: Tensor) -> Tensor:
        queries = self.encoder(x)
        self.update()
        with torch.no_grad():
            keys = self.keys(x + 0.1 * queries.detach())
        return torch.tanh(queries) - keys


class AllSpellings(Momentum):
    spellings = SPELLINGS
    # Each step has hundreds of messages.
    steps = 2


class AfterBackward(Momentum):
    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(x) - self.keys(x).detach()

    def step(self, model: nn.Module, backward: Callable[[Tensor], None], x: Tensor) -> Tensor:
        loss = super().step(model, backward, x)
        self.update()
        return loss


class ReadAfterBackward(Momentum):
    def step(self, model: nn.Module, backward: Callable[[Tensor], None], x: Tensor) -> Tensor:
        loss = super().step(model, backward, x)
        return loss + sum(key.sum() for key in self.momentum.parameters())


class Through(Momentum):
    """Gradients go through the momentum encoder, and through a checkpointed layer of it."""

    def forward(self, x: Tensor) -> Tensor:
        from torch.utils.checkpoint import checkpoint

        self.update()
        queries = self.encoder(x)
        return self.keys(queries) - checkpoint(self.momentum["lerp"].b, queries, use_reentrant=False)


class Swapped(Momentum):
    """A forward computes with other weights, and puts the old ones back."""

    def keys(self, x: Tensor) -> Tensor:
        parameters = [*self.momentum["crossed"].parameters()]
        old = [key.data for key in parameters]
        for query, key in zip(self.encoder.parameters(), parameters, strict=True):
            key.data = 2 * query.data
        swapped = super().keys(x)
        for key, data in zip(parameters, old, strict=True):
            key.data = data
        return super().keys(x) - swapped


CASES: dict[str, type[Net]] = {
    case.__name__: case for case in (AllSpellings, AfterBackward, ReadAfterBackward, Through, Swapped)
}
