"""Scripts that use sharded parameters by themselves, and ranks that use different blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.sharding.parameters.order import difference
from tests.parallel.torch.ranks import Ranks
from tests.parallel.torch.sharding.releases import needs_shard

SHARDED = {"hybrid_shard_degree": 2}
ROWS = torch.linspace(-1, 1, 16).view(4, 4)


class Net(nn.Module):
    """Two blocks of one size, and a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.head = nn.Linear(4, 1)
        # The blocks that `forward` calls, and those whose result it detaches.
        self.called: tuple[int, ...] = (0, 1)
        self.detached: tuple[int, ...] = ()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for index in self.called:
            y = self.blocks[index](x)
            x = x + (y.detach() if index in self.detached else y)
        return self.head(x)

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x)


class Functional(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.blocks[0].weight)


def rank() -> int:
    return torch.distributed.get_rank()


def order_of(called: list[tuple[int, ...]], detached: list[tuple[int, ...]], each: bool) -> str:
    from herringbone_parallel.torch.sharding import api as tsm
    from herringbone_parallel.torch.sharding import state

    order = state.get().call_order()
    assert order._compared_calls > 0
    if not each:
        order._compared_calls = 0
    model = tsm.shard(Net())
    model(ROWS).sum().backward()
    model.called, model.detached = called[rank()], detached[rank()]
    with pytest.raises(ParallelError) as error:
        model(ROWS).sum().backward()
    return str(error.value).split(": ")[1]


@needs_shard
@pytest.mark.parametrize("degree", [1, 2])
def test_ranks_that_use_other_blocks_are_refused(ranks: Ranks, degree: int) -> None:
    """Regression: torch matches their collectives by their order, and so mixed the values of two blocks, or hung."""
    calls, sums = "calls blocks.{} of Net", "sums the gradients of {}Net"
    text = "rank 0 {}, while rank 1 {}. Every rank must call the same blocks in the same order, in training and in"

    def refused(*args: Any) -> list[str]:
        return [
            error[: error.index(" evaluation")]
            for error in ranks.shard(order_of, 2, {"hybrid_shard_degree": degree}, *args)
        ]

    both = [(0, 1), (0, 1)]
    of_one = text.format(sums.format("blocks.1 of "), sums.format(""))
    assert refused(both, [(), (1,)], True) == [of_one] * 2
    if degree == 2:
        assert refused([(0, 1), (1, 0)], [(), ()], True) == [text.format(calls.format(0), calls.format(1))] * 2
        # As on CUDA devices, at the end of the backward.
        assert refused([(0, 1), (1, 0)], [(), ()], False) == [text.format(calls.format(0), calls.format(1))] * 2


def test_a_difference_names_the_first_call_that_differs() -> None:
    assert difference([["a", "b"], ["a", "b"], ["a"]]).split(": ")[1].split(".")[0] == (
        "rank 0 b, while rank 2 does nothing more"
    )


def whole(model: nn.Module) -> dict[str, torch.Tensor]:
    return {
        name: value.full_tensor() if hasattr(value, "full_tensor") else value
        for name, value in model.state_dict().items()
    }


def written() -> list[str]:
    """Return the ways of writing into a sharded model that do not give it these values."""
    from herringbone_parallel.torch.sharding import api as tsm

    values = {
        name: torch.full_like(value, 3.0) + torch.arange(value.shape[0]).view(-1, *[1] * (value.ndim - 1))
        for name, value in Net().state_dict().items()
    }

    def each(model: nn.Module, write: Callable[[Any, torch.Tensor], object]) -> None:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                write(parameter, values[name])

    ways: dict[str, Callable[[nn.Module], object]] = {
        "load_state_dict": lambda model: model.load_state_dict(values),
        "assign": lambda model: model.load_state_dict(values, assign=True),
        "copy_": lambda model: each(model, lambda parameter, value: parameter.copy_(value)),
        "data": lambda model: each(model, lambda parameter, value: setattr(parameter, "data", value)),
        "data of a DTensor": lambda model: each(
            model,
            lambda parameter, value: setattr(parameter, "data", parameter.data * 0 + distributed(parameter, value)),
        ),
    }
    wrong = []
    expected = Net()
    expected.load_state_dict(values)
    for name, write in ways.items():
        model = tsm.shard(Net())
        write(model)
        equal = all(torch.equal(value, values[key]) for key, value in whole(model).items())
        if not equal or not torch.equal(model(ROWS), expected(ROWS)):
            wrong.append(name)
    model, alone = tsm.shard(Net()), Net()
    # Each rank its own seed, and the whole has rank 0's numbers.
    torch.manual_seed(rank())
    nn.init.normal_(model.head.weight)
    torch.manual_seed(0)
    nn.init.normal_(alone.head.weight)
    if not torch.equal(whole(model)["head.weight"], alone.head.weight):
        wrong.append("normal_")
    with pytest.raises(ParallelError, match=r"parameter\.data = values: the values are torch.float64"):
        model.head.weight.data = torch.ones(1, 4, dtype=torch.float64)
    return wrong


def distributed(parameter: Any, value: torch.Tensor) -> Any:
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value, parameter.device_mesh, parameter.placements)


@needs_shard
def test_values_of_the_whole_are_written_into_a_sharded_model(ranks: Ranks) -> None:
    assert ranks.shard(written, 2, dict(SHARDED)) == [[]] * 2


def halve(parameter: torch.Tensor) -> None:
    parameter.grad.mul_(0.5)


def trained(penalty: str, hooked: str) -> float:
    """Return the largest difference of weights to one process, after three steps."""
    from herringbone_parallel.torch.sharding import api as tsm

    def hook(model: nn.Module) -> None:
        model.blocks[0].weight.register_hook(lambda gradient: gradient * torch.tensor([0.0, 1, 1, 0.5]).view(4, 1))
        model.head.weight.register_hook(lambda gradient: None).remove()
        model.head.weight.register_post_accumulate_grad_hook(halve)

    results = []
    for sharded in (False, True):
        model: nn.Module = Net()
        if hooked == "before":
            hook(model)
        model = tsm.shard(model) if sharded else model
        if hooked == "after":
            hook(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batch = ROWS[rank() * 2 : rank() * 2 + 2] if sharded else ROWS
        for _ in range(3):
            loss = model(batch).square().mean()
            if penalty == "squares":
                loss = loss + 0.1 * sum(parameter.square().sum() for parameter in model.parameters())
            elif penalty == "norms":
                loss = 0.1 * sum(parameter.norm() for parameter in model.blocks.parameters()) - loss / 3
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        results.append(whole(model))
    return max((results[0][name] - value).abs().max().item() for name, value in results[1].items())


@needs_shard
@pytest.mark.parametrize(("penalty", "hooked"), [("squares", "before"), ("norms", "after")])
def test_hooks_and_terms_of_the_loss_count_as_in_one_process(ranks: Ranks, penalty: str, hooked: str) -> None:
    """Regression: hooks on gradients were dropped, and a term that was computed from parameters failed."""
    assert max(ranks.shard(trained, 2, dict(SHARDED), penalty, hooked)) < 1e-6


def penalised() -> float:
    """Train by penalties of input gradients; return the largest difference of weights to one process."""
    from herringbone_parallel.torch.sharding import api as tsm

    results = []
    for sharded in (False, True):
        # Whose gradients arrive by second derivatives alone: the models are linear.
        makers: list[Callable[[], nn.Module]] = [Net, lambda: nn.Linear(4, 1, bias=False)]
        models = []
        for make in makers:
            torch.manual_seed(0)
            models.append(tsm.shard(make()) if sharded else make())
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
        batch = (ROWS[rank() * 2 : rank() * 2 + 2] if sharded else ROWS).clone().requires_grad_()
        for _ in range(3):
            penalties = []
            for model in models:
                (slope,) = torch.autograd.grad(model(batch).tanh().sum(), batch, create_graph=True)
                penalties.append(slope.square().sum(1).mean())
            # Another backward, and a step of one model, between the penalty and its backward.
            models[1](batch).mean().backward()
            penalties[0].backward()
            optimizers[0].step()
            penalties[1].backward()
            optimizers[1].step()
            for model in models:
                model.zero_grad()
        results.append({name: value for model in models for name, value in whole(model).items()})
    return max((results[0][name] - value).abs().max().item() for name, value in results[1].items())


@needs_shard
def test_second_derivatives_by_inputs_are_those_of_one_process(ranks: Ranks) -> None:
    """Regression: the second backward read gathered parameters that the first one had freed, which killed the rank."""
    assert max(ranks.shard(penalised, 2, dict(SHARDED))) < 1e-6


def adversarial(rows: int) -> float:
    """Train a generator and a critic with penalties, as WGAN-GP and R1 do; return the difference to one process.

    Rank 1 has two rows more than the others. Only the critic needs second derivatives.
    """
    from herringbone_parallel.torch.sharding import api as tsm

    sizes = [rows + 2 * (index == 1) for index in range(torch.distributed.get_world_size())]
    start = sum(sizes[: rank()])
    results = []
    for sharded in (False, True):
        generator, critic = Net(), Net()
        generator.head = nn.Linear(4, 4)
        if sharded:
            generator, critic = tsm.shard(generator), tsm.shard(critic)
        optimizers = [torch.optim.Adam(model.parameters(), lr=0.01, eps=1e-3) for model in (generator, critic)]
        # The mean over the ranks of these sums is the mean over all rows.
        weight = (len(sizes) if sharded else 1) / sum(sizes)
        noise = torch.linspace(-1, 1, sum(sizes) * 4).view(-1, 4).sin()
        noise = noise[start : start + sizes[rank()]] if sharded else noise
        for penalty in ("interpolated", "real", "none"):
            real, fake = noise.cos().requires_grad_(), generator(noise)
            at = (real + fake.detach()).div(2) if penalty == "interpolated" else real
            scores = critic(at).tanh()
            loss = (critic(fake.detach()) - critic(real).tanh()).sum() * weight
            if penalty != "none":
                (slope,) = torch.autograd.grad(scores.sum(), at, create_graph=True)
                loss = loss + (slope.norm(dim=1) - 1).square().sum() * weight
            loss.backward()
            optimizers[1].step()
            (-critic(fake).sum() * weight).backward()
            optimizers[0].step()
            for optimizer in optimizers:
                optimizer.zero_grad()
        results.append(
            {(model is critic, name): value for model in (generator, critic) for name, value in whole(model).items()}
        )
    return max((results[0][name] - value).abs().max().item() for name, value in results[1].items())


@needs_shard
@pytest.mark.parametrize("degree", [2, 4])
def test_penalties_on_replicas_of_shards_are_those_of_one_process(ranks: Ranks, degree: int) -> None:
    assert max(ranks.shard(adversarial, 4, {"hybrid_shard_degree": degree}, 2)) < 1e-6


class Adafactor(torch.optim.SGD):
    """Stands for the one of transformers."""


def refused_uses() -> list[str]:
    from herringbone_parallel.torch.sharding import api as tsm

    errors = []
    model = tsm.shard(Net())
    for use in (
        lambda: model.encode(ROWS),
        lambda: tsm.shard(Functional())(ROWS),
        lambda: Adafactor(model.parameters(), lr=0.1).step(),
        lambda: torch.autograd.grad(model(ROWS).sum(), list(model.parameters()), allow_unused=True),
        lambda: model(ROWS).sum().backward(inputs=list(model.parameters())),
        lambda: model(ROWS).sum().backward(create_graph=True),
    ):
        with pytest.raises(ParallelError) as error:
            use()
        errors.append(str(error.value))
    tsm.state.tensor_parallel_degree = 1
    with pytest.raises(ParallelError, match=r"tensor_parallel_degree = 2: this job has 1\."):
        tsm.state.tensor_parallel_degree = 2
    # The ways out.
    torch.distributed.fsdp.register_fsdp_forward_method(model, "encode")
    model.encode(ROWS)
    tsm.shard(Functional(), blocks=[])(ROWS).sum().backward()
    optimizer = torch.optim.Adafactor(model.parameters(), lr=0.1, foreach=True)
    model(ROWS).sum().backward()
    optimizer.step()
    return errors


@needs_shard
def test_uses_of_parameters_that_are_not_whole_are_refused(ranks: Ranks) -> None:
    encode, functional, adafactor, *by_parameters, create_graph = ranks.shard(refused_uses, 2, dict(SHARDED))[1]
    assert encode.startswith("Net.encode uses parameters that are whole in Net.forward only")
    assert 'register_fsdp_forward_method(module, "encode")' in encode
    assert functional.startswith("Functional.forward uses parameters of a block that it does not call")
    assert adafactor.endswith("Use torch.optim.Adafactor, whose numbers are those of the whole")
    for error in by_parameters:
        assert error.startswith("torch.autograd.grad, or backward(inputs=...), for parameters of a sharded model")
    assert create_graph.startswith("backward(create_graph=True) through a sharded model")
