"""LARS and LAMB compared with the same formulas written layer by layer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import profiler

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.recipes.api import LAMB, LARS, weight_groups

DECAY, RATE = 0.02, 0.3


def network() -> nn.Module:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 40))
    return model.append(nn.ReLU()).append(nn.Linear(40, 5))


def gradients(model: nn.Module, step: int) -> None:
    """Set random gradients: a computed one of a bias before BatchNorm is only rounding, which Adam would amplify."""
    torch.manual_seed(step)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter) * 0.1


class LayerByLayer:
    """The algorithms as in their papers, layer by layer, with plain numbers and tensors as state."""

    def __init__(self, model: nn.Module, rule: Callable[..., None]) -> None:
        self.layers = [(parameter, {}) for parameter in model.parameters()]
        self.rule = rule

    @torch.no_grad()
    def step(self, rate: float) -> None:
        for weight, state in self.layers:
            if weight.grad is not None:
                adapt = weight.ndim > 1
                self.rule(weight, weight.grad, state, rate, DECAY if adapt else 0.0, adapt)


def lars_rule(w: torch.Tensor, g: torch.Tensor, state: dict, rate: float, decay: float, adapt: bool) -> None:
    ratio = 0.01 * w.norm() / (g.norm() + decay * w.norm()) if adapt and w.norm() > 0 and g.norm() > 0 else 1.0
    state["v"] = 0.9 * state.get("v", 0) + rate * ratio * (g + decay * w)
    w -= state["v"]


def lamb_rule(w: torch.Tensor, g: torch.Tensor, state: dict, rate: float, decay: float, adapt: bool) -> None:
    state["t"] = state.get("t", 0) + 1
    state["m"] = 0.9 * state.get("m", 0) + 0.1 * g
    state["v"] = 0.99 * state.get("v", 0) + 0.01 * g * g
    m, v = state["m"] / (1 - 0.9 ** state["t"]), state["v"] / (1 - 0.99 ** state["t"])
    u = m / (v.sqrt() + 1e-6) + decay * w
    ratio = w.norm() / u.norm() if adapt and w.norm() > 0 and u.norm() > 0 else 1.0
    w -= rate * ratio * u


def lars(model: nn.Module, kind: type[LARS] = LARS) -> LARS:
    return kind(weight_groups(model, DECAY), lr=RATE, trust=0.01)


def lamb(model: nn.Module, kind: type[LAMB] = LAMB) -> LAMB:
    return kind(weight_groups(model, DECAY), lr=RATE, betas=(0.9, 0.99))


BOTH = pytest.mark.parametrize(("make", "rule"), [(lars, lars_rule), (lamb, lamb_rule)])


@BOTH
@pytest.mark.parametrize("cache", [1, 4 << 20], ids=["a layer at a time", "all at once"])
@pytest.mark.parametrize("fused", [True, False])
def test_many_layers_at_once_are_as_one_after_the_other(make: Any, rule: Any, cache: int, fused: bool) -> None:
    members = {"_cache_bytes": cache, **({} if fused else {"_is_fused": lambda *_: False})}
    kind = type("Chosen", (LARS if make is lars else LAMB,), members)
    model = network()
    with torch.no_grad():
        model[6].weight.zero_()  # a norm of 0: such a layer moves as it would without the ratio
    other = copy.deepcopy(model)
    ours, plain = make(model, kind), LayerByLayer(other, rule)
    for step in range(6):
        rate = RATE / (step + 1)
        for copied in (model, other):
            gradients(copied, step)
            copied[4].weight.grad = None if step == 2 else copied[4].weight.grad
        for group in ours.param_groups:
            group["lr"] = rate
        ours.step()
        plain.step(rate)
    for (name, weight), expected in zip(model.named_parameters(), other.parameters(), strict=True):
        assert torch.allclose(weight, expected, rtol=1e-5, atol=1e-6), name


@BOTH
def test_a_resumed_training_goes_on_bit_by_bit(make: Any, rule: Any) -> None:
    model = network()
    optimizer = make(model)
    for step in range(3):
        gradients(model, step)
        optimizer.step()
    other = copy.deepcopy(model)
    resumed = make(other)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for trained, stepper in ((model, optimizer), (other, resumed)):
        gradients(trained, 3)
        stepper.step()
    for weight, expected in zip(other.parameters(), model.parameters(), strict=True):
        assert torch.equal(weight, expected)


@BOTH
def test_operators_do_not_grow_with_the_number_of_layers(make: Any, rule: Any) -> None:
    def calls(layers: int) -> int:
        """Count the list operations of one step; each is a few launches, whatever the length of its lists."""
        parameters = [nn.Parameter(torch.ones(4, 4)) for _ in range(layers)]
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        optimizer = make(nn.ParameterList(parameters))
        optimizer.step()
        with profiler.profile() as trace:
            optimizer.step()
        return sum(event.name.startswith(("aten::_foreach", "aten::_fused")) for event in trace.function_events)

    few = calls(4)
    assert 0 < few < 10
    assert calls(40) == few


def test_groups() -> None:
    model = network()
    model[0].weight.requires_grad_(False)
    decayed, plain = weight_groups(model, 0.1)
    assert [tuple(parameter.shape) for parameter in decayed["params"]] == [(40, 144), (5, 40)]
    assert {parameter.ndim for parameter in plain["params"]} == {1}
    assert (decayed["weight_decay"], decayed["adapt"], plain["weight_decay"], plain["adapt"]) == (0.1, True, 0.0, False)


def test_a_closure_is_called_with_gradients_on() -> None:
    weight = nn.Parameter(torch.ones(2, 2))

    def closure() -> torch.Tensor:
        loss = weight.square().sum()
        loss.backward()
        return loss

    assert LARS([weight], lr=0.1).step(closure).item() == 4
    assert not torch.equal(weight, torch.ones(2, 2))


@pytest.mark.parametrize("optimizer", [LARS, LAMB])
def test_unsupported_parameters_are_refused(optimizer: Any) -> None:
    weight = nn.Parameter(torch.ones(2, 2))
    with pytest.raises(ParallelError, match="with a learning rate of -1"):
        optimizer([weight], lr=-1)
    with pytest.raises(ParallelError, match=r"\(2, 2\) is torch.bfloat16; .* Keep parameters in float32"):
        optimizer([weight.detach().bfloat16().requires_grad_()], lr=1)
    weight.grad = torch.ones(2, 2).to_sparse()
    with pytest.raises(ParallelError, match="sparse"):
        optimizer([weight], lr=1).step()
