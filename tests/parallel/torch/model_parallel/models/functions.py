"""Models that leave torch's function protocol: custom autograd functions, scripted functions and custom operations."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.parallel.torch.model_parallel.models.case import CLASSES, WIDTH, Backward, Case


class Cube(torch.autograd.Function):
    """Its backward is twice the gradient's two thirds: a plain `x ** 3` would give other weights."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 2 * gradient * x * x


class Mixed(torch.autograd.Function):
    """Several inputs and outputs: one output has no gradient, and no gradient reaches another one."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor, constant: torch.Tensor, factor: float) -> Any:
        assert ctx.needs_input_grad == (True, True, False, False)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, y)
        ctx.factor = factor
        positive = x > 0
        ctx.mark_non_differentiable(positive)
        return x * y * factor, positive, x - y, x + constant

    @staticmethod
    def backward(ctx: Any, product: torch.Tensor, positive: None, difference: torch.Tensor, unused: None) -> Any:
        assert (positive, unused) == (None, None)
        x, y = ctx.saved_tensors
        by_x = 1.1 * product * y * ctx.factor + difference
        by_y = 0.9 * product * x * ctx.factor - difference
        return by_x, by_y, None, None


class Power(torch.autograd.Function):
    """The form with `setup_context` and an argument by default."""

    @staticmethod
    def forward(x: torch.Tensor, exponent: int = 2) -> torch.Tensor:
        return x**exponent

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return 1.5 * gradient * ctx.saved_tensors[0], None


# Bound at import, as scripts do, long before the library replaces anything.
cube = Cube.apply


def script(code: Any) -> Any:
    """Compile a function or a module with torch.jit, which newer versions of torch warn about."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        return torch.jit.script(code)


@script
def scripted(x: torch.Tensor) -> torch.Tensor:
    return x * x + x


# As an extension in C++ defines its operations.
torch.library.define("herringbone_tests::triple", "(Tensor x) -> Tensor")
torch.library.impl("herringbone_tests::triple", "CompositeImplicitAutograd", lambda x: x * 3)


class CustomFunctions(nn.Module):
    """Functions on values between two ranks, on values of two ranks, and on a parameter of code of every rank."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.third = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)
        self.scale = nn.Parameter(torch.linspace(0.5, 1, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = torch.tanh(self.first(x))
        second = torch.tanh(self.second(cube(first)))
        product, positive, difference, _ = Mixed.apply(first, second, torch.ones_like(x), 2.0)
        h = self.third(torch.where(positive, product, difference)) * Power.apply(self.scale)
        with torch.no_grad():
            h = h + 0.1 * cube(second)
        h = torch.ops.herringbone_tests.triple(scripted(torch.tanh(h)))
        nn.functional.leaky_relu(h, 0.1, inplace=True)
        torch.ops.aten.mul_.Scalar(h, 0.5)
        return self.head(h)

    @staticmethod
    def step(model: Callable[..., Any], backward: Backward, inputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        loss = Cube.apply(nn.functional.cross_entropy(model(inputs), target))
        backward(loss)
        return loss


CASES = {"CustomFunctions": Case(CustomFunctions, step=CustomFunctions.step)}
