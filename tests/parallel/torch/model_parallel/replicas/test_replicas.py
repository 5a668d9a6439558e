"""Replicas of a pipeline train as one process on all their data: same losses, same gradients, same weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.pairwise import pairwise
from tests.parallel.torch.model_parallel import models
from tests.parallel.torch.model_parallel.models.layers import Dropped, Normed
from tests.parallel.torch.ranks import Ranks

STEPS = 5
FOUR = {"partitions": 2, "replicas": 2, "ddp": True}


def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output, target)


def train(name: str, dtype: torch.dtype, options: dict[str, Any]) -> Any:
    """Train as a user's script does, as one rank of several; each replica takes its part of the batch."""
    import herringbone_parallel.torch.model_parallel.api as smp

    module, inputs, target = models.build(name)
    module, inputs = module.to(dtype), inputs.to(dtype)
    inputs = inputs.chunk(smp.dp_size())[smp.dp_rank()]
    target = target.chunk(smp.dp_size())[smp.dp_rank()]
    optimizer = torch.optim.SGD(module.parameters(), lr=0.2, momentum=0.9)
    model = smp.DistributedModel(module, **options)
    optimizer = smp.DistributedOptimizer(optimizer)

    @smp.step
    def train_step(inputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        loss = loss_of(model(inputs), target)
        model.backward(loss)
        return loss

    losses, gradients = [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = train_step(inputs, target).reduce_mean()
        losses.append(sum(smp.allgather(loss.item(), smp.DP_GROUP)) / smp.dp_size())
        gradients.append({key: p.grad for key, p in model.local_named_parameters()})
        gradients[-1] = {key: None if grad is None else grad.clone() for key, grad in gradients[-1].items()}
        optimizer.step()
    return losses, gradients, model.state_dict(), smp.dp_rank()


def train_alone(name: str, dtype: torch.dtype, parts: int) -> Any:
    module, inputs, target = models.build(name)
    module, inputs = module.to(dtype), inputs.to(dtype)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.2, momentum=0.9)
    losses, gradients = [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = 0.0
        for part, labels in zip(inputs.chunk(parts), target.chunk(parts), strict=True):
            share = loss_of(module(part), labels) / parts
            share.backward()
            loss += share.item()
        gradients.append({key: None if p.grad is None else p.grad.clone() for key, p in module.named_parameters()})
        optimizer.step()
        losses.append(loss)
    return losses, gradients, module.state_dict()


def assert_equal(by_rank: list[Any], expected: Any, tolerance: float) -> None:
    losses, gradients, weights = expected
    for rank_losses, rank_gradients, rank_weights, _ in by_rank:
        assert rank_losses == pytest.approx(losses, abs=tolerance)
        for rank_step, step in zip(rank_gradients, gradients, strict=True):
            for key, gradient in rank_step.items():
                assert (gradient is None) == (step[key] is None), key
                if gradient is not None:
                    torch.testing.assert_close(gradient, step[key], atol=tolerance, rtol=0, msg=key)
        for key, weight in weights.items():
            torch.testing.assert_close(rank_weights[key], weight, atol=tolerance, rtol=0, msg=key)
    for one in by_rank:
        for other in by_rank:
            assert all(torch.equal(one[2][key], other[2][key]) for key in weights), (
                "replicas stay equal to the last bit"
            )


@pytest.mark.parametrize(
    ("name", "microbatches", "pipeline"),
    pairwise(
        ("Chain", "Tied", "Revisited", "Frozen", "OwnParameter", "UnusedOutput"),
        (1, 4),
        ("simple", "interleaved", "zero_bubble"),
    ),
)
def test_two_replicas_of_two_partitions_train_as_one_process_does(
    ranks: Ranks, name: str, microbatches: int, pipeline: str
) -> None:
    by_rank = ranks.run(train, {**FOUR, "microbatches": microbatches, "pipeline": pipeline}, name, torch.float32, {})
    assert_equal(by_rank, train_alone(name, torch.float32, 2 * microbatches), 1e-6)


@pytest.mark.parametrize("name", ["Chain", "Tied", "Revisited"])
def test_in_double_precision_they_are_equal_to_1e_12(ranks: Ranks, name: str) -> None:
    by_rank = ranks.run(train, {**FOUR, "microbatches": 2}, name, torch.float64, {})
    assert_equal(by_rank, train_alone(name, torch.float64, 4), 1e-12)


@pytest.mark.parametrize("placement", ["spread", "PTD", "TDP"])
def test_wherever_the_ranks_of_a_pipeline_are_placed(ranks: Ranks, placement: str) -> None:
    by_rank = ranks.run(train, {**FOUR, "microbatches": 2, "placement_strategy": placement}, "Tied", torch.float32, {})
    assert_equal(by_rank, train_alone("Tied", torch.float32, 4), 1e-6)


@pytest.mark.parametrize("microbatches", [1, 4])
def test_replicas_of_a_whole_model(ranks: Ranks, microbatches: int) -> None:
    by_rank = ranks.run(
        train,
        {"partitions": 1, "replicas": 2, "ddp": True, "microbatches": microbatches},
        "Revisited",
        torch.float32,
        {},
    )
    assert_equal(by_rank, train_alone("Revisited", torch.float32, 2 * microbatches), 1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {"bucket_cap_mb": 0.0005},
        {"overlapping_allreduce": False, "bucket_cap_mb": 0.0005},
        {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.0005},
        {"find_unused_parameters": True, "broadcast_buffers": False},
    ],
)
@pytest.mark.parametrize("name", ["Chain", "BranchOnData", "OwnParameter"])
def test_the_options_of_the_reduction_change_no_result(ranks: Ranks, name: str, options: dict[str, Any]) -> None:
    """A microbatch of BranchOnData takes one of two branches by its data, so replicas use different parameters."""
    by_rank = ranks.run(train, {**FOUR, "microbatches": 4}, name, torch.float32, options)
    assert_equal(by_rank, train_alone(name, torch.float32, 8), 1e-6)


class Detour(nn.Module):
    """Uses an extra first layer for inputs that request it: its gradients are the last to come."""

    def __init__(self) -> None:
        super().__init__()
        self.detour = nn.Linear(models.WIDTH, models.WIDTH)
        self.first = nn.Linear(models.WIDTH, 16)
        self.never = nn.Linear(3, 3)
        self.head = nn.Linear(16, models.CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x[0, 0] > 5:
            x = self.detour(x)
        return self.head(self.first(x))


def batch_with_detours(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a batch; from the second step on, the last two of its four microbatches request the detour."""
    _, inputs, target = models.build("Chain")
    inputs[:, 0] = 0.0
    if step:
        inputs[4:, 0] = 9.0
    return inputs, target


def train_with_detours() -> Any:
    import herringbone_parallel.torch.model_parallel.api as smp

    torch.manual_seed(3)
    model = smp.DistributedModel(Detour())
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))

    @smp.step
    def train_step(inputs: torch.Tensor, target: torch.Tensor) -> None:
        model.backward(loss_of(model(inputs), target))

    unused = []
    for step in range(STEPS):
        inputs, target = (tensor.chunk(2)[smp.dp_rank()] for tensor in batch_with_detours(step))
        optimizer.zero_grad()
        train_step(inputs, target)
        unused.append(sorted(name for name, p in model.local_named_parameters() if p.grad is None))
        optimizer.step()
    return unused, model.state_dict()


def test_a_module_that_one_replica_uses_is_trained_in_all(ranks: Ranks) -> None:
    """Replica 1 adds to gradients that have left already, as they were unused before; replica 0 must learn of it."""
    torch.manual_seed(3)
    module = Detour()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for step in range(STEPS):
        inputs, target = batch_with_detours(step)
        optimizer.zero_grad()
        for part, labels in zip(inputs.chunk(4), target.chunk(4), strict=True):
            (loss_of(module(part), labels) / 4).backward()
        optimizer.step()
    for unused, weights in (by_rank := ranks.run(train_with_detours, {**FOUR, "microbatches": 2})):
        for step, names in enumerate(unused):
            assert not [name for name in names if not name.startswith(("never", "detour") if step == 0 else "never")]
        for name, weight in module.state_dict().items():
            torch.testing.assert_close(weights[name], weight, atol=1e-6, rtol=0)
    of_all = {name for unused, _ in by_rank for name in unused[-1]}
    assert of_all == {"never.weight", "never.bias"}


def unequal_starts(dropout: bool) -> Any:
    """Start each replica with other values; return its values after the partition, and its output."""
    import herringbone_parallel.torch.model_parallel.api as smp

    inputs = models.build("Chain" if dropout else "Normed")[1]
    torch.manual_seed(smp.dp_rank())
    module = Dropped() if dropout else Normed()
    for buffer in module.buffers():
        buffer.add_(smp.dp_rank())
    model = smp.DistributedModel(module, broadcast_buffers=not dropout)
    states = []
    model.register_post_partition_hook(lambda model: states.append(model.local_state_dict()))
    evaluate = smp.step(lambda inputs: model(inputs))
    with torch.no_grad():
        output = evaluate(inputs).concat()
    return states[0], output


def test_every_replica_starts_from_the_first_ones_parameters_and_buffers(ranks: Ranks) -> None:
    zero, one, two, three = (state for state, _ in ranks.run(unequal_starts, dict(FOUR), False))
    assert zero.keys() == two.keys()
    assert all(torch.equal(zero[key], two[key]) for key in zero if torch.is_tensor(zero[key]))
    assert all(torch.equal(one[key], three[key]) for key in one if torch.is_tensor(one[key]))


def test_replicas_that_are_seeded_apart_drop_apart(ranks: Ranks) -> None:
    """Each process has its own generator, as with DistributedDataParallel."""
    zero, one, two, three = (output for _, output in ranks.run(unequal_starts, dict(FOUR), True))
    assert torch.equal(zero, one)
    assert torch.equal(two, three)
    assert not torch.equal(zero, two)
