"""Models whose control flow no tracer can follow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.parallel.torch.model_parallel.models.case import CLASSES, WIDTH, Backward, Case


class Chain(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16), nn.Linear(16, CLASSES)
        )


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
        self.third = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.shared(x))
        h = torch.tanh(self.other(h))
        if h.shape[0] > 0:
            h = self.shared(h)
        return self.head(self.third(h))


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
        self.after = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        for _ in range(1 + int(h.abs().sum().item()) % 3):
            h = torch.tanh(self.body(h))
        return self.head(self.after(h))


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 8)
        self.second = nn.Linear(8, 8)
        self.third = nn.Linear(8, 8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        h += 1
        h = self.second(h).relu_()
        h = h * 1.5
        h[:, 0] = 0.5
        h.add_(2)
        return self.head(self.third(h))


class Frozen(Chain):
    """The first layer is not trained, and neither is one in the middle, through which gradients still flow."""

    def __init__(self) -> None:
        super().__init__()
        self[0].requires_grad_(False)
        self[4].requires_grad_(False)


class UnusedModule(nn.Module):
    """One module is never called: its parameters have no gradient, on any rank."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 8)
        self.never = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.second(self.first(x)))


class Reversed(nn.Module):
    """A list of modules, called in the opposite order of its definition."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, CLASSES)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in reversed(self.layers):
            x = x + torch.tanh(layer(x))
        return self.head(x)


class Nested(nn.Module):
    """Blocks of blocks, each with code around its parts: a cut may be inside any of them."""

    class Block(nn.Module):
        def __init__(self, depth: int) -> None:
            super().__init__()
            self.before = nn.Linear(WIDTH, WIDTH)
            self.inner = nn.Identity() if depth == 0 else Nested.Block(depth - 1)
            self.after = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = torch.relu(self.before(x))
            return x + self.after(self.inner(h) * h)

    def __init__(self) -> None:
        super().__init__()
        self.block = self.Block(2)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.block(x))


class StopGradient(nn.Module):
    """Part of the forward runs without gradients, and a value is detached on its way."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.third = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            goal = self.second(torch.tanh(self.first(x)))
        h = self.second(self.first(x)) - goal
        return self.head(self.third(h) * h.detach())


class CodeBetween(nn.Module):
    """Indexing, joining, splitting and broadcasting of values of several ranks in the code between the modules."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(WIDTH, 8)
        self.right = nn.Linear(WIDTH, 8)
        self.mixed = nn.Linear(16, 8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right = self.left(x), self.right(x)
        both = self.mixed(torch.cat([left, right], dim=-1))
        first, second = both.chunk(2, dim=1)
        scores = torch.einsum("bi,bj->bij", left[:, ::2], right[..., 1::2]).softmax(-1)
        picked = torch.where(second > 0, first, second.masked_fill(second < -1, 0.25))
        rows = [row.mean(0, keepdim=True) for row in scores]
        return self.head(torch.stack([picked, torch.cat(rows)], dim=1).transpose(1, 2).reshape(len(x), -1))


class MultiLoss(CodeBetween):
    """One backward of two losses, which lie on different ranks."""

    @staticmethod
    def step(model: Callable[..., Any], backward: Backward, inputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        scores = model(inputs)
        loss, size = nn.functional.cross_entropy(scores, target), scores.square().mean()
        backward([loss, 0.1 * size])
        return loss + size.detach()


class Regularised(Chain):
    """The loss has a term over all parameters, wherever they are."""

    @staticmethod
    def step(model: Callable[..., Any], backward: Backward, inputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        size = sum(parameter.square().sum() for parameter in model.parameters() if parameter.requires_grad)
        loss = nn.functional.cross_entropy(model(inputs), target) + 0.01 * size
        backward(loss)
        return loss


class SeveralBackwards(nn.Module):
    """Two heads on separate trunks with a backward each; the second waits for the first."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, CLASSES))
        self.two = nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, CLASSES))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.one(x), self.two(x)

    @staticmethod
    def step(model: Callable[..., Any], backward: Backward, inputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        one, two = model(inputs)
        first, second = nn.functional.cross_entropy(one, target), nn.functional.cross_entropy(two, target)
        backward(first)
        backward(second)
        return first + second


class GivenGradient(Residual):
    """Backward of a tensor that is no scalar, with a starting gradient."""

    @staticmethod
    def step(model: Callable[..., Any], backward: Backward, inputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        scores = model(inputs)
        backward(scores, scores.detach().softmax(-1) - nn.functional.one_hot(target, CLASSES))
        return nn.functional.cross_entropy(scores, target)


CASES = {
    case.module.__name__: case
    for case in (
        *map(Case, (
            Chain, Residual, Revisited, BranchOnData, LoopOnData, InPlace, Frozen, UnusedModule, Reversed, Nested,
            StopGradient, CodeBetween,
        )),
        *(Case(module, step=module.step) for module in (MultiLoss, Regularised, SeveralBackwards, GivenGradient)),
    )
}  # fmt: skip
