"""The trace of one step: the costs it measures, and that it leaves the model unchanged. One process, no ranks."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from herringbone_parallel.core.partition.costs import CostTree, Link, Value
from herringbone_parallel.core.partition.work import CPU, Device
from herringbone_parallel.core.structure import leaves_of
from herringbone_parallel.torch.model_parallel.failures import MODULE_ATTRIBUTE
from herringbone_parallel.torch.model_parallel.placement.measure import Live, measure, optimizer_state_of, suppose

# A second per operation and nothing else, so that the seconds are counts of operations.
COUNTING = Device(
    operations_per_second=1.0, bytes_per_second=1e30, call_seconds=0.0, link=Link(seconds=0.0, bytes_per_second=1.0)
)


def train(module: nn.Module, inputs: torch.Tensor) -> Callable[[AbstractContextManager[None]], None]:
    def run(watch: AbstractContextManager[None]) -> None:
        with watch:
            leaves_of(module(inputs))[0].sum().backward()

    return run


def cost(module: nn.Module, inputs: torch.Tensor, device: Device = COUNTING, **options: Any) -> CostTree:
    live = Live(microbatches=options.pop("microbatches", 1), state_of=options.pop("state_of", {}))
    return measure(module, train(module, inputs), device, live, **options)


def column(tree: CostTree, name: str) -> dict[str, Any]:
    return {node.path: getattr(node, name) for node in tree.root.walk()}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4, bias=False)
        self.act = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.act(self.fc(x))


def test_operations_of_forward_and_backward_belong_to_their_module() -> None:
    tree = cost(nn.Sequential(nn.Linear(4, 4, bias=False), Block()), torch.ones(3, 4))
    product = 2 * 3 * 4 * 4
    # The inputs of the first layer need no gradient.
    seconds = {"": 0, "0": 2 * product, "1": 0, "1.fc": 3 * product, "1.act": 0}
    assert column(tree, "seconds") == pytest.approx(seconds, abs=1e-9)


def test_a_recurrent_layer_is_counted_by_its_matrices() -> None:
    seconds = column(cost(nn.LSTM(4, 8, batch_first=True), torch.ones(2, 5, 4)), "seconds")
    forward = 2 * (2 * 5) * (4 * 8) * (4 + 8)
    assert 2 * forward <= seconds[""] <= 3 * forward * 1.05


class Transforming(nn.Linear):
    """Uses functions of torch that refuse hooks of saved tensors, or make tensors without a storage."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        slope = torch.func.grad(lambda y: torch.func.grad(lambda z: z.pow(3).sum())(y).sum())(x)
        neighbours = torch.eye(len(x)).to_sparse()
        return super().forward(torch.sparse.mm(neighbours, x) + neighbours @ slope)


def test_transforms_and_sparse_products_are_measured() -> None:
    """They had failed under the hooks of the trace, and so with an automatic partition alone."""
    plain, transforming = (cost(kind(4, 4, bias=False), torch.ones(3, 4)) for kind in (nn.Linear, Transforming))
    assert column(transforming, "seconds")[""] >= column(plain, "seconds")[""]
    # The hooks are back: the input of the linear function counts.
    assert column(transforming, "activation_bytes")[""] >= column(plain, "activation_bytes")[""] == 3 * 4 * 4


def test_kept_bytes_are_counted_once_for_every_live_microbatch() -> None:
    tree = cost(nn.Sequential(nn.Linear(4, 4, bias=False), Block()), torch.ones(3, 4), microbatches=5)
    kept = 3 * 4 * 4 * 5
    # "0" keeps its input, "1.fc" keeps its input, which "0" made, and ReLU keeps its output.
    assert column(tree, "activation_bytes") == {"": 0, "0": kept, "1": 0, "1.fc": kept, "1.act": kept}


def test_values_go_from_the_module_that_made_them_to_those_that_use_them() -> None:
    tree = cost(nn.Sequential(nn.Linear(4, 4, bias=False), Block()), torch.ones(3, 4))
    size = 3 * 4 * 4

    def value(source: str, *users: str) -> Value:
        return Value(source=source, users=users, forward_bytes=size, backward_bytes=size)

    assert tree.values == (
        value("0", "1.fc", "1"),
        value("1.fc", "1.act"),
        value("1.act", "1"),
        # The sum in the step function.
        value("1", ""),
    )


def test_no_gradient_comes_back_to_what_needs_none() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)).requires_grad_(False)
    module[1].requires_grad_()
    passed = {(value.source, value.users): value.backward_bytes for value in cost(module, torch.ones(3, 4)).values}
    assert passed == {("0", ("1",)): 0, ("1", ("",)): 24}


class Borrower(nn.Module):
    """Uses a child's weight in its own code, and leaves another child alone."""

    def __init__(self) -> None:
        super().__init__()
        self.idle = nn.Linear(2, 2)
        self.late = nn.Linear(4, 4, bias=False)
        self.early = nn.Linear(4, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(self.late(self.early(x)), self.early.weight)


def test_a_borrowed_weight_is_a_value_of_its_owner() -> None:
    tree = cost(Borrower(), torch.ones(3, 4))
    assert Value(source="early", users=("",), forward_bytes=64, backward_bytes=64) in tree.values


def test_children_are_in_the_order_of_their_first_call_and_idle_ones_last() -> None:
    assert [child.path for child in cost(Borrower(), torch.ones(3, 4)).root.children] == ["early", "late", "idle"]


class Stack(nn.Module):
    """Layers in a list, which is never called itself, between an embedding and a last layer that is defined first."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, 4)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.first = nn.Linear(4, 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        states = self.first(inputs)
        for layer in self.layers:
            states = layer(states)
        return self.last(states)


def test_a_list_of_layers_has_the_place_of_its_first_layer() -> None:
    assert [child.path for child in cost(Stack(), torch.ones(3, 4)).root.children] == ["first", "layers", "last"]


def test_the_bytes_of_a_parameter_include_gradient_and_optimizer_state() -> None:
    module = nn.Sequential(nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4))
    module[1].bias.requires_grad_(False)
    tree = cost(module, torch.ones(3, 4), state_of=optimizer_state_of([torch.optim.Adam([module[0].weight])]))
    held = {path: sorted(parameters.values()) for path, parameters in column(tree, "parameters").items()}
    # Weight, gradient and two moments; weight and gradient; no gradient; running mean, variance and number of batches.
    assert held == {"": [], "0": [256], "1": [8, 16, 16, 16, 32]}


class Unknown(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("make", "copies"),
    [
        (torch.optim.SGD, 0.0),
        (lambda parameters: torch.optim.SGD(parameters, momentum=0.9), 1.0),
        (torch.optim.Adagrad, 1.0),
        (torch.optim.Adam, 2.0),
        (lambda parameters: torch.optim.AdamW(parameters, amsgrad=True), 3.0),
        (Unknown, 0.0),
    ],
)
def test_the_trial_step_of_an_optimizer_finds_its_state_and_leaves_none(make: Any, copies: float) -> None:
    parameter = nn.Parameter(torch.ones(2))
    optimizer = make([parameter])
    before = len(optimizer.state)
    steps = []
    optimizer.register_step_post_hook(lambda *_: steps.append(1))
    assert optimizer_state_of([optimizer]) == {id(parameter): copies}
    assert (steps, len(optimizer.state), optimizer.param_groups[0]["params"]) == ([], before, [parameter])


def test_estimates_are_the_same_in_every_run_and_for_equal_layers() -> None:
    module = nn.Sequential(*[nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(3)])
    inputs = torch.ones(2, 5, 8)
    first, second = cost(module, inputs, CPU), cost(module, inputs, CPU)
    assert first == second
    seconds = column(first, "seconds")
    assert seconds["1.linear1"] == seconds["2.linear1"] > 0


def test_clocked_equal_layers_share_their_time() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 64))
    tree = cost(module, torch.ones(3, 4), CPU, clocked_link=Link(seconds=1.0, bytes_per_second=2.0))
    seconds = column(tree, "seconds")
    assert seconds["1"] == seconds["2"] != seconds["3"]
    assert tree.link == Link(seconds=1.0, bytes_per_second=2.0)


class Forgetful(nn.Module):
    """Changes everything that a module can change while it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.calls = 0
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.seen = self.seen + 1
        with torch.no_grad():
            self.norm.weight.clamp_(max=0.5)
        x = self.norm(x) * random.random() * float(np.random.rand())
        self.drop.eval()
        return self.drop(torch.dropout(x, 0.5, train=True))


def test_the_model_and_all_random_numbers_are_as_before() -> None:
    module = Forgetful()
    module.norm.weight.grad = torch.full((4,), 7.0)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    seen, weight = module.seen, module.norm.weight

    def drawn() -> tuple[float, ...]:
        return torch.rand(()).item(), random.random(), float(np.random.rand())

    def seed() -> None:
        torch.manual_seed(5)
        random.seed(5)
        np.random.seed(5)

    seed()
    expected = drawn()
    seed()
    cost(module, torch.tensor([[1.0, 2.0, 3.0, 4.0], [4.0, 3.0, 2.0, 1.0]]))
    assert drawn() == expected
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert (module.calls, module.drop.training) == (0, True)
    assert module.seen is seen
    assert module.norm.weight is weight
    assert torch.equal(module.norm.weight.grad, torch.full((4,), 7.0))
    assert module.norm.bias.grad is None


class Broken(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError("boom")


def test_an_exception_names_its_module_and_everything_is_restored() -> None:
    module = nn.Sequential(nn.BatchNorm1d(4), nn.Sequential(Broken(4, 4)))
    call = nn.Module.__call__
    with pytest.raises(ZeroDivisionError) as caught:
        cost(module, torch.randn(3, 4))
    assert getattr(caught.value, MODULE_ATTRIBUTE) == "1.0"
    assert torch.equal(module[0].running_mean, torch.zeros(4))
    assert nn.Module.__call__ is call


def test_recomputed_activations_count_as_work_and_not_as_memory() -> None:
    plain = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))

    class Recomputed(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.utils.checkpoint.checkpoint(super().forward, x, use_reentrant=False)

    inputs = torch.ones(3, 4, requires_grad=True)
    before, after = cost(plain, inputs), cost(Recomputed(*plain), inputs)
    # Only the inputs of the last layer are missing, so the last layer itself does not run again.
    assert column(after, "seconds")["0"] == column(before, "seconds")["0"] * 4 / 3
    assert column(after, "seconds")["2"] == column(before, "seconds")["2"]
    assert sum(column(after, "activation_bytes").values()) < sum(column(before, "activation_bytes").values())


def test_without_a_run_work_is_assumed_in_proportion_to_parameters() -> None:
    tree = suppose(nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU(), nn.Linear(4, 2, bias=False)), {})
    seconds = column(tree, "seconds")
    assert seconds["0"] == 2 * seconds["2"]
    assert (seconds["1"], tree.values) == (0, ())
