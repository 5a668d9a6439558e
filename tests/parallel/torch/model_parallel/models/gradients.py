"""Models whose step asks for gradients of values, and not of parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.parallel.torch.model_parallel.models.case import CLASSES, WIDTH, Backward, Case


class GradientPenalty(nn.Module):
    """The loss has the norm of a gradient in it, so its backward differentiates twice."""

    def __init__(self) -> None:
        super().__init__()
        self.entry = nn.Linear(WIDTH, WIDTH)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = self.second(torch.tanh(self.first(self.entry(x))))
        score = torch.tanh(h * h).sum()
        (gradient,) = torch.autograd.grad(score, h, create_graph=True)
        return self.head(h), gradient

    @staticmethod
    def step(model: Callable[..., Any], backward: Backward, inputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        scores, gradient = model(inputs)
        loss = nn.functional.cross_entropy(scores, target) + ((gradient.norm(dim=1) - 1) ** 2).mean()
        backward(loss)
        return loss


class Retained(nn.Module):
    """The step returns the gradients of values: of one that two ranks use, of one inside a segment, and of the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first = self.first(x)
        inside = torch.tanh(first)
        second = self.second(inside)
        return self.head(second + torch.sin(first)), first, inside, second

    @staticmethod
    def step(model: Callable[..., Any], backward: Backward, inputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        scores, *values = model(inputs)
        loss = nn.functional.cross_entropy(scores, target)
        for value in (*values, loss):
            value.retain_grad()
        assert all(value.grad is None for value in values)
        assert scores.grad is None
        backward(loss)
        return sum(value.grad.square().sum() for value in (*values, loss))


CASES = {"GradientPenalty": Case(GradientPenalty, step=GradientPenalty.step)}
RETAINED = Case(Retained, step=Retained.step)
