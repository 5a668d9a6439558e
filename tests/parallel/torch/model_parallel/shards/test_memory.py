"""The bytes of the training state on each rank between steps, against the ideal share."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.parallel.torch.ranks import Ranks

WIDTH = 48


def bytes_of(tensors: Any) -> int:
    """Return the bytes of the tensors' storages; one that several share counts once."""
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


def measure() -> tuple[int, int, int]:
    """Return the bytes of parameters, gradients and optimizer states after a step."""
    import herringbone_parallel.torch.model_parallel.api as smp

    torch.manual_seed(3)
    layers = [layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    module = nn.Sequential(nn.Embedding(7, WIDTH), *layers, nn.Linear(WIDTH, 3))
    model = smp.DistributedModel(module)
    optimizer = smp.DistributedOptimizer(torch.optim.AdamW(model.parameters()))

    @smp.step
    def train_step(tokens: torch.Tensor) -> None:
        model.backward(model(tokens).square().mean())

    train_step(torch.arange(4))
    optimizer.step()
    parameters = [parameter.detach() for parameter in model.local_parameters()]
    gradients = [parameter.grad for parameter in model.local_parameters() if parameter.grad is not None]
    states = [
        value
        for entry in optimizer.optimizer.state.values()
        for value in entry.values()
        # The count of steps is a scalar for each parameter.
        if isinstance(value, torch.Tensor) and value.dim()
    ]
    return bytes_of(parameters), bytes_of(gradients), bytes_of(states)


ELEMENTS = 7 * WIDTH + 4 * (WIDTH * WIDTH + WIDTH) + 3 * (WIDTH + 1)
PARAMETERS = {"partitions": 1, "ddp": True, "sdp_param_persistence_threshold": 0}


@pytest.mark.parametrize(("replicas", "shards"), [(2, 2), (4, 4), (4, 2)])
def test_a_rank_has_its_share_of_the_whole_training_state(ranks: Ranks, replicas: int, shards: int) -> None:
    for parameters, gradients, states in ranks.run(
        measure, {**PARAMETERS, "replicas": replicas, "sharded_data_parallel_degree": shards}
    ):
        ideal = 4 * ELEMENTS / shards
        assert parameters == pytest.approx(ideal, rel=0.03)
        assert gradients == pytest.approx(ideal, rel=0.03)
        assert states == pytest.approx(2 * ideal, rel=0.03)


def test_the_ranks_of_a_pipeline_have_their_share_together(ranks: Ranks) -> None:
    by_rank = ranks.run(measure, {**PARAMETERS, "partitions": 2, "replicas": 2, "sharded_data_parallel_degree": 2})
    for of_all, times in zip(zip(*by_rank, strict=True), (1, 1, 2), strict=True):
        assert sum(of_all) == pytest.approx(times * 4 * ELEMENTS, rel=0.03)
        # The ranks of one partition have equal parts: 0 and 2, 1 and 3.
        assert of_all[0] == pytest.approx(of_all[2], rel=0.03)
        assert of_all[1] == pytest.approx(of_all[3], rel=0.03)


def test_divided_updates_leave_each_replica_its_share_of_the_optimizer_states(ranks: Ranks) -> None:
    for parameters, gradients, states in ranks.run(
        measure, {"partitions": 1, "replicas": 2, "ddp": True, "shard_optimizer_state": True}
    ):
        assert parameters == gradients == 4 * ELEMENTS
        assert states == pytest.approx(2 * 4 * ELEMENTS / 2, rel=0.03)


def test_small_parameters_stay_whole(ranks: Ranks) -> None:
    small = 4 * WIDTH + 3 * (WIDTH + 1) + 7 * WIDTH
    settings = {**PARAMETERS, "sdp_param_persistence_threshold": WIDTH * WIDTH}
    for parameters, _, _ in ranks.run(measure, {**settings, "replicas": 2, "sharded_data_parallel_degree": 2}):
        assert parameters == pytest.approx(4 * (small + (ELEMENTS - small) / 2), rel=0.03)
