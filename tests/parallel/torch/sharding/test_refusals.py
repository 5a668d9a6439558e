"""Scripts that version 2's library refuses, on every rank and by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from herringbone_contract.errors import ParallelError
from tests.parallel.torch.ranks import Ranks


def refused_models() -> list[str]:
    """Return the errors for models that differ between ranks, and that the next collective still works."""
    from herringbone_parallel.torch.sharding import api as tsm

    def other_names() -> nn.Module:
        return nn.Sequential(nn.Linear(2, 2, bias=tsm.state.rank == 0))

    def other_shape() -> nn.Module:
        return nn.Sequential(nn.Linear(2, 2 + tsm.state.rank))

    def other_type() -> nn.Module:
        return nn.Sequential(nn.Linear(2, 2, dtype=(torch.float32, torch.float64)[tsm.state.rank]))

    errors = []
    for make in (other_names, other_shape, other_type):
        with pytest.raises(ParallelError) as caught:
            tsm.shard(make())
        errors.append(str(caught.value))
        # No rank waits for another.
        torch.distributed.barrier()
    return errors


def test_models_that_differ_are_refused_on_all_ranks(ranks: Ranks) -> None:
    for errors in ranks.shard(refused_models, 2, {"hybrid_shard_degree": 2}):
        assert errors == [
            "the model of rank 1 differs from rank 0's: 0.bias is in one of them only",
            "the model of rank 1 differs from rank 0's: 0.weight is float32 [3, 2] there, and float32 [2, 2] on rank 0",
            "the model of rank 1 differs from rank 0's: 0.weight is float64 [2, 2] there, and float32 [2, 2] on rank 0",
        ]


def without_shards() -> Any:
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

    layer = nn.Linear(2, 2)
    nn.init.ones_(layer.weight)
    model = FullyShardedDataParallel(layer, sharding_strategy=ShardingStrategy.NO_SHARD, use_orig_params=True)
    model(torch.full((1, 2), float(torch.distributed.get_rank()))).sum().backward()
    return layer.weight.grad.tolist()


def refused_strategy() -> None:
    with pytest.raises(
        ParallelError, match=r"NO_SHARD: the job shards the training state over 2 ranks\. .*hybrid_shard_degree to 1"
    ):
        without_shards()


def test_no_shard_is_refused_where_the_job_shards(ranks: Ranks) -> None:
    ranks.shard(refused_strategy, 2, {"hybrid_shard_degree": 2})
    # Here it asks for what the job has: every rank has the whole state, and gradients are averaged.
    assert ranks.shard(without_shards, 2, {"hybrid_shard_degree": 1}) == [[[0.5, 0.5]] * 2] * 2
