"""Memory: a rank holds its own parameters, and the activations of the microbatches that the schedule keeps live."""

from __future__ import annotations

import gc
import weakref
from queue import SimpleQueue
from typing import Any

import pytest
import torch
from benchmarks.pipeline import workload
from torch import nn

from tests.parallel.torch.model_parallel import models
from tests.parallel.torch.ranks import Ranks


def count_live() -> int:
    """Return the greatest number of microbatches that were in the step function at the same time."""
    import herringbone_parallel.torch.model_parallel.api as smp

    module, inputs, target = models.build("Chain")
    model = smp.DistributedModel(module)
    # The library gives each microbatch lists and variables of its own, and leaves these queues alone.
    live: SimpleQueue[int] = SimpleQueue()
    counts: SimpleQueue[int] = SimpleQueue()

    @smp.step
    def train_step(inputs: torch.Tensor, target: torch.Tensor) -> None:
        if smp.is_tracing():
            return
        live.put(1)
        counts.put(live.qsize())
        model.backward(nn.functional.cross_entropy(model(inputs), target))
        live.get()

    for _ in range(3):
        train_step(inputs, target)
    return max(counts.get() for _ in range(counts.qsize()))


@pytest.mark.parametrize(
    ("partitions", "schedule", "most"),
    [
        (2, {"pipeline": "simple"}, 8),
        (2, {"pipeline": "interleaved"}, 4),
        (3, {"pipeline": "interleaved"}, 5),
        (3, {"pipeline": "interleaved", "active_microbatches": 2}, 2),
        (2, {"pipeline": "interleaved", "active_microbatches": 1}, 1),
    ],
)
def test_no_more_microbatches_live_than_are_active(
    ranks: Ranks, partitions: int, schedule: dict[str, Any], most: int
) -> None:
    by_rank = ranks.run(count_live, {"partitions": partitions, "microbatches": 8, "skip_tracing": True, **schedule})
    if schedule["pipeline"] == "simple":
        assert by_rank == [most] * partitions
    assert max(by_rank) <= most


def hold(name: str) -> tuple[int, int, list[str]]:
    """Return the bytes of this rank's parameters and of their state, and the other ranks' parameters not yet freed."""
    import herringbone_parallel.torch.model_parallel.api as smp

    module, inputs, target = models.build(name)
    references = {path: weakref.ref(parameter) for path, parameter in module.named_parameters()}
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    model = smp.DistributedModel(module)
    optimizer = smp.DistributedOptimizer(optimizer)

    @smp.step
    def train_step(inputs: torch.Tensor, target: torch.Tensor) -> None:
        model.backward(nn.functional.cross_entropy(model(inputs), target))

    for _ in range(2):
        train_step(inputs, target)
        optimizer.step()
    own = dict(model.local_named_parameters())
    gc.collect()
    state = sum(entry["momentum_buffer"].nbytes for entry in optimizer.state.values())
    left = [path for path, parameter in references.items() if path not in own and parameter() is not None]
    return sum(parameter.nbytes for parameter in own.values()), state, left


@pytest.mark.parametrize("name", ["Chain", "Tied", "OwnParameter", "ConvNet"])
@pytest.mark.parametrize("partitions", [2, 4])
def test_a_rank_holds_its_own_parameters_and_no_others(ranks: Ranks, name: str, partitions: int) -> None:
    by_rank = ranks.run(hold, {"partitions": partitions, "microbatches": 2}, name)
    module, *_ = models.build(name)
    whole = sum(parameter.nbytes for parameter in module.parameters())
    assert sum(held for held, _, _ in by_rank) == whole
    assert all(0 < held < whole for held, _, _ in by_rank)
    assert [state for _, state, _ in by_rank] == [held for held, _, _ in by_rank], "momentum of its own parameters only"
    assert [left for _, _, left in by_rank] == [[]] * partitions


def peak_activations() -> int:
    """Return the peak of the bytes that autograd kept in the modules of this rank, in the second step."""
    import herringbone_parallel.torch.model_parallel.api as smp

    kept = workload.Kept()
    model = smp.DistributedModel(workload.build(kept))

    @smp.step
    def train_step(inputs: torch.Tensor, target: torch.Tensor) -> None:
        model.backward(workload.loss_of(model(inputs), target))

    for _ in range(2):
        kept.peak = 0
        train_step(*workload.data())
    return kept.peak


@pytest.mark.parametrize("partitions", [2, 3])
def test_interleaved_keeps_the_activations_of_the_active_microbatches(ranks: Ranks, partitions: int) -> None:
    microbatches = 8
    simple, interleaved = (
        ranks.run(peak_activations, {"partitions": partitions, "microbatches": microbatches, "pipeline": pipeline})
        for pipeline in ("simple", "interleaved")
    )
    share = (partitions + 2) / microbatches
    for rank in range(partitions):
        assert 0 < interleaved[rank] <= 1.05 * share * simple[rank], (
            f"rank {rank}: {interleaved[rank]} of {simple[rank]}"
        )
