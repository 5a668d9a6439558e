"""Deferral: a backward in two parts gives the same gradients, and computes those of parameters in the second part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from herringbone_parallel.torch.model_parallel.runtime.deferral import Deferral, cuts_of


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.norm = nn.LayerNorm(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.layer(torch.relu(self.layer(x)))) * torch.sigmoid(self.layer.bias)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "chain": lambda: nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6)),
    "tied": Tied,
    "encoder": lambda: nn.TransformerEncoderLayer(6, 2, 12, dropout=0.0, batch_first=True),
    "convolution": lambda: nn.Sequential(nn.Conv1d(4, 4, 3, padding=1), nn.ReLU(), nn.Linear(6, 6)),
    "recurrent": lambda: _First(nn.LSTM(6, 6, 2, batch_first=True)),
    "normed": lambda: nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(4), nn.Linear(6, 6)),
}


class _First(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(x)[0]


def gradients_of(name: str, input_needs_gradient: bool, deferral: Deferral | None) -> tuple[Any, list[torch.Tensor]]:
    torch.manual_seed(0)
    model = MODELS[name]()
    x = torch.randn(3, 4, 6, requires_grad=input_needs_gradient)
    root = model(x)
    gradient = torch.randn(root.shape)
    if deferral is None:
        root.backward(gradient)
        return x.grad, [p.grad for p in model.parameters() if p.grad is not None]
    (input_gradient,) = deferral.backward([root], [gradient], [x] if input_needs_gradient else []) or (None,)
    assert all(parameter.grad is None for parameter in model.parameters()), "the gradients of parameters come later"
    assert deferral
    deferral.run()
    assert not deferral
    return input_gradient, [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("input_needs_gradient", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_two_parts_give_the_gradients_of_one(name: str, input_needs_gradient: bool) -> None:
    whole, parts = gradients_of(name, input_needs_gradient, None), gradients_of(name, input_needs_gradient, Deferral())
    assert (whole[0] is None and parts[0] is None) or torch.equal(whole[0], parts[0])
    assert len(whole[1]) == len(parts[1]) > 0
    for one, other in zip(whole[1], parts[1], strict=True):
        torch.testing.assert_close(one, other, atol=1e-7, rtol=1e-6)


def test_a_cut_is_where_parameters_join_the_way_of_the_input() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))
    x = torch.randn(3, 6, requires_grad=True)
    cuts = cuts_of([model(x)], [x])
    assert [cut.node.name() for cut in cuts] == ["AddmmBackward0", "AddmmBackward0"]
    assert [{id(p) for p in cut.parameters} for cut in cuts] == [
        {id(p) for p in model[2].parameters()}, {id(p) for p in model[0].parameters()},
    ]  # fmt: skip


def test_without_an_input_that_needs_a_gradient_all_is_put_off() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))
    root = model(torch.randn(3, 6))
    (cut,) = cuts_of([root], [])
    assert cut.node is root.grad_fn
    assert len(cut.parameters) == 4


def test_weights_are_computed_in_the_second_part_only() -> None:
    """The first part multiplies for the inputs only; torch's profiler counts the products."""
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    x = torch.randn(4, 8, requires_grad=True)
    root = model(x)
    deferral = Deferral()
    with torch.profiler.profile() as first:
        deferral.backward([root], [torch.ones_like(root)], [x])
    with torch.profiler.profile() as second:
        deferral.run()
    assert [sum(e.count for e in part.key_averages() if e.key == "aten::mm") for part in (first, second)] == [2, 2]
