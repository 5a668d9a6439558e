"""Ranks that share the training state train as one process on all their data."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.parallel.torch.model_parallel.shards.training import assert_equal, train, train_alone
from tests.parallel.torch.ranks import Ranks

SHARD_2 = {"partitions": 1, "replicas": 2, "sharded_data_parallel_degree": 2}
SHARD_4 = {"partitions": 1, "replicas": 4, "sharded_data_parallel_degree": 4}
HYBRID = {"partitions": 1, "replicas": 4, "sharded_data_parallel_degree": 2}
PIPELINE = {"partitions": 2, "replicas": 2, "sharded_data_parallel_degree": 2}
# All parameters are sharded, however small.
SHARED = {"ddp": True, "sdp_param_persistence_threshold": 0}


def check(ranks: Ranks, name: str, dtype: torch.dtype, parameters: dict[str, Any]) -> None:
    settings = {**SHARED, **parameters}
    parts = settings["replicas"] * settings.get("microbatches", 1)
    by_rank = ranks.run(train, settings, name, dtype)
    alone = train_alone(name, dtype, parts, settings.get("sdp_gradient_clipping", 1.0))
    assert_equal(by_rank, alone, dtype, buffers=name != "Normed")


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("Chain", SHARD_2),
        ("UnusedModule", SHARD_2),
        ("Normed", SHARD_2),
        ("TinyTransformer", SHARD_4),
        ("Frozen", SHARD_4),
        ("TinyTransformer", HYBRID),
        ("Normed", HYBRID),
    ],
)
def test_shards_train_as_one_process_does(ranks: Ranks, name: str, layout: dict[str, Any]) -> None:
    check(ranks, name, torch.float64, {**layout, "microbatches": 2})


def test_in_single_precision_they_are_equal_to_1e_5(ranks: Ranks) -> None:
    check(ranks, "TinyTransformer", torch.float32, {**SHARD_2, "sdp_gradient_clipping": 0})


@pytest.mark.parametrize(("microbatches", "pipeline"), [(1, "simple"), (2, "interleaved"), (4, "zero_bubble")])
def test_shards_of_a_pipeline_train_as_one_process_does(ranks: Ranks, microbatches: int, pipeline: str) -> None:
    check(ranks, "TinyTransformer", torch.float64, {**PIPELINE, "microbatches": microbatches, "pipeline": pipeline})


@pytest.mark.parametrize("name", ["Tied", "Normed", "OwnParameter", "BranchOnData"])
def test_shards_of_pipelines_with_what_no_tracer_splits(ranks: Ranks, name: str) -> None:
    # In float32, Adam makes steps of the rounding errors of a bias before a normalization, whose gradient is 0.
    dtype = torch.float64 if name == "Normed" else torch.float32
    check(ranks, name, dtype, {**PIPELINE, "microbatches": 2})


@pytest.mark.parametrize(("name", "partitions"), [("TinyTransformer", 1), ("UnusedModule", 2)])
def test_replicas_that_divide_updates_train_as_one_process_does(ranks: Ranks, name: str, partitions: int) -> None:
    settings = {"partitions": partitions, "replicas": 2, "ddp": True, "microbatches": 2, "shard_optimizer_state": True}
    by_rank = ranks.run(train, settings, name, torch.float64)
    assert_equal(by_rank, train_alone(name, torch.float64, 4, 0.0), torch.float64)


LITTLE = {"sdp_max_live_parameters": 1500, "sdp_reduce_bucket_size": 1000}


@pytest.mark.parametrize("name", ["TinyTransformer", "Tied", "Frozen"])
def test_units_that_are_gathered_one_after_another_train_as_one_process_does(ranks: Ranks, name: str) -> None:
    live = LITTLE if name == "TinyTransformer" else {"sdp_max_live_parameters": 40}
    check(ranks, name, torch.float64, {**SHARD_2, **live, "microbatches": 2})


def test_shards_on_two_hosts_gather_in_two_stages(ranks: Ranks) -> None:
    check(ranks, "Chain", torch.float64, {**SHARD_4, "local_size": 2})


def gather_numbers() -> tuple[bool, list[float]]:
    from herringbone_parallel.torch.model_parallel import state

    group = state.get().shard_group
    assert group is not None
    whole = torch.empty(8)
    group.gather(whole, torch.tensor([2.0 * group.index, 2.0 * group.index + 1]))
    return group.hierarchy is not None, whole.tolist()


@pytest.mark.parametrize(
    ("local_size", "hierarchical", "staged"), [(2, True, True), (2, False, False), (4, True, False), (1, True, False)]
)
def test_both_ways_to_gather_keep_the_order(ranks: Ranks, local_size: int, hierarchical: bool, staged: bool) -> None:
    settings = {**SHARED, **SHARD_4, "local_size": local_size, "sdp_hierarchical_allgather": hierarchical}
    assert ranks.run(gather_numbers, settings) == [(staged, [float(number) for number in range(8)])] * 4
