"""Models that take, exchange and return more than one tensor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from tests.parallel.torch.model_parallel.models.case import CLASSES, WIDTH, Backward, Case, sequences


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


class UnusedOutput(nn.Module):
    """One of two outputs is never used: parameters that only this output depends on have no gradient."""

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
        self.third = nn.Linear(8, 8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        used, _ = self.two(x)
        return self.head(self.third(used))


class Trunk(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.third = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)


class ReturnsDict(Trunk):
    """The first module's output comes back next to the scores, in a dict with a list in it."""

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        a = self.first(x)
        b = torch.tanh(self.second(a))
        return {"scores": self.head(self.third(b)), "hidden": [a, b], "length": len(x), "cache": None}

    @staticmethod
    def step(model: Callable[..., Any], backward: Backward, inputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        output = model(inputs)
        assert output["length"] == len(inputs)
        assert output["cache"] is None
        loss = nn.functional.cross_entropy(output["scores"], target) + 0.1 * sum(
            h.square().mean() for h in output["hidden"]
        )
        backward(loss)
        return loss


@dataclass
class Output:
    scores: torch.Tensor
    states: tuple[torch.Tensor, ...]
    attentions: tuple[torch.Tensor, ...] | None = None
    loss: torch.Tensor | None = None


class ReturnsDataclass(Trunk):
    """The model computes the loss, on the rank with the scores, and returns a dataclass with None in it."""

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Output:
        a = self.first(x)
        b = self.third(torch.tanh(self.second(a)))
        scores = self.head(b)
        loss = None if labels is None else nn.functional.cross_entropy(scores, labels)
        return Output(scores, (a, b), loss=loss)

    @staticmethod
    def step(model: Callable[..., Any], backward: Backward, inputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        output = model(inputs, labels=target)
        assert output.attentions is None
        loss = output.loss + output.states[0].mean()
        backward(loss)
        return loss


class Pair(NamedTuple):
    h: torch.Tensor
    c: torch.Tensor | None


class ReturnsTuples(Trunk):
    """Named tuples go in and out, one of them through a module that only passes it on."""

    class Hand(nn.Module):
        def forward(self, pair: Pair) -> Pair:
            return Pair(pair.h, pair.h.mean() if pair.c is None else pair.c)

    def __init__(self) -> None:
        super().__init__()
        self.hand = self.Hand()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, Pair]:
        pair = self.hand(Pair(self.first(x), None))
        pair = self.hand(Pair(self.third(self.second(pair.h)), pair.c))
        return self.head(pair.h * pair.c), pair

    @staticmethod
    def step(model: Callable[..., Any], backward: Backward, inputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        scores, pair = model(inputs)
        assert type(pair) is Pair
        loss = nn.functional.cross_entropy(scores, target) + pair.c.square()
        backward(loss)
        return loss


class Keywords(Trunk):
    """Tensors, numbers and words as keyword arguments, of the model and of its parts; a mask that needs no gradient."""

    class Gate(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Linear(WIDTH, WIDTH)

        def forward(
            self, x: torch.Tensor, *, mask: torch.Tensor, scale: float = 1.0, kind: str = "none"
        ) -> torch.Tensor:
            gate = torch.sigmoid(self.gate(x)) if kind == "sigmoid" else self.gate(x)
            return x * gate.masked_fill(mask, 0.0) * scale

    def __init__(self) -> None:
        super().__init__()
        self.gated = self.Gate()

    def forward(self, x: torch.Tensor, *, mask: torch.Tensor, scale: float) -> torch.Tensor:
        h = self.gated(self.first(x), mask=mask, scale=scale, kind="sigmoid")
        h = self.gated(x=self.second(h), mask=h > 0)
        return self.head(input=self.third(h))

    @staticmethod
    def step(model: Callable[..., Any], backward: Backward, inputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.cross_entropy(model(inputs, mask=inputs > 1, scale=0.5), target)
        backward(loss)
        return loss


class NoInput(nn.Module):
    """Modules without any input, or with none that needs a gradient, feed the others."""

    class Prompt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.prompt = nn.Parameter(torch.randn(WIDTH))

        def forward(self) -> torch.Tensor:
            return torch.tanh(self.prompt)

    def __init__(self) -> None:
        super().__init__()
        self.prompt = self.Prompt()
        self.coordinates = nn.Linear(1, WIDTH)
        self.body = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        position = self.coordinates(torch.arange(x.shape[1], dtype=x.dtype).unsqueeze(1))
        return self.head(self.body(x + position) + self.prompt()).mean(1)


def predict_tokens(
    model: Callable[..., Any], backward: Backward, inputs: torch.Tensor, target: torch.Tensor
) -> torch.Tensor:
    loss = nn.functional.cross_entropy(model(inputs).flatten(0, 1), target.flatten())
    backward(loss)
    return loss


CASES = {
    **{module.__name__: Case(module) for module in (Structured, UnusedOutput)},
    **{
        module.__name__: Case(module, step=module.step)
        for module in (ReturnsDict, ReturnsDataclass, ReturnsTuples, Keywords)
    },
    "NoInput": Case(NoInput, sequences),
}
