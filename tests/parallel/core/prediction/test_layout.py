"""Layouts of `distribution` dicts: degrees, what is refused, and the dicts that are none."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from herringbone_contract.distribution import parse
from herringbone_contract.errors import ParallelError
from herringbone_contract.model_parallel.mesh import Mesh
from herringbone_parallel.core.prediction.layout import Layout, Library, ShardLimits, layout_of
from herringbone_parallel.core.prediction.measurement import Measurement

MEASURED = Measurement(
    framework="torch 2.13.0",
    device="cpu",
    batch=8,
    wrapper="DistributedDataParallel",
    modules=(),
    parameters=(),
    operations=(),
    calls=(),
    tensors=(),
)
TORCH = {"torch_distributed": {"enabled": True}}
SMDDP = {"smdistributed": {"dataparallel": {"enabled": True}}}


def measured(**changes: Any) -> Measurement:
    return msgspec.structs.replace(MEASURED, **changes)


def version1(**parameters: Any) -> dict[str, Any]:
    return {
        "mpi": {"enabled": True, "processes_per_host": 2},
        "smdistributed": {"modelparallel": {"enabled": True, "parameters": parameters}},
    }


def version2(**parameters: Any) -> dict[str, Any]:
    return {**TORCH, "smdistributed": {"modelparallel": {"enabled": True, "parameters": parameters}}}


# dict, ranks, wrapper of the script, and members of the layout
CASES: list[tuple[dict[str, Any], int, str, dict[str, Any]]] = [
    ({}, 1, "", {"library": Library.ALONE}),
    (TORCH, 1, "", {"library": Library.ALONE}),
    (TORCH, 4, "DistributedDataParallel", {"mesh": Mesh(replicate=4), "library": Library.DDP}),
    (TORCH, 4, "accelerate", {"mesh": Mesh(replicate=4), "library": Library.DDP}),
    (TORCH, 4, "fully_shard", {"mesh": Mesh(shard=4), "library": Library.FULLY_SHARD}),
    ({"mpi": {"enabled": True}}, 2, "DistributedDataParallel", {"mesh": Mesh(replicate=2), "library": Library.DDP}),
    ({"pytorchddp": {"enabled": True}}, 2, "DistributedDataParallel", {"library": Library.DATA_PARALLEL}),
    (SMDDP, 2, "DistributedDataParallel", {"mesh": Mesh(replicate=2), "library": Library.DATA_PARALLEL}),
    (
        {"smdistributed": {"dataparallel": {"enabled": True, "aggregation_frequency": 4, "wire": "bf16"}}},
        2,
        "accelerate",
        {"library": Library.DATA_PARALLEL, "aggregation": 4},
    ),
    (
        version1(partitions=2, microbatches=4, ddp=True, shard_optimizer_state=True),
        4,
        "smp",
        {
            "mesh": Mesh(replicate=2, pipeline=2),
            "library": Library.VERSION1,
            "microbatches": 4,
            "active": 4,
            "shard_optimizer_state": True,
        },
    ),
    (
        version1(
            pipeline_parallel_degree=2, microbatches=8, active_microbatches=3, pipeline="simple", optimize="speed"
        ),
        2,
        "smp",
        {"mesh": Mesh(pipeline=2), "active": 3, "live": 8, "pipeline": "simple", "memory_weight": 0.2},
    ),
    (
        version1(partitions=1, ddp=True, sharded_data_parallel_degree=2, sdp_max_live_parameters=10_000),
        4,
        "smp",
        {"mesh": Mesh(replicate=2, shard=2), "limits": ShardLimits(live=10_000)},
    ),
    (
        version1(partitions=2, ddp=True, tensor_parallel_degree=2, microbatches=2, placement_strategy="spread"),
        4,
        "smp",
        {"mesh": Mesh(pipeline=2, tensor=2), "placement": "TPD", "batch_scale": 2.0, "batches": 2},
    ),
    (
        version1(
            ddp=True,
            tensor_parallel_degree=2,
            prescaled_batch=True,
            microbatches=2,
            offload_activations=True,
            bf16=True,
        ),
        2,
        "smp",
        {"mesh": Mesh(tensor=2), "batch_scale": 1.0, "batches": 1, "offloading": True, "horizon": 4},
    ),
    (version2(hybrid_shard_degree=2), 4, "fully_shard", {"mesh": Mesh(replicate=2, shard=2)}),
    (
        version2(tensor_parallel_degree=2, context_parallel_degree=2, random_seed=7),
        8,
        "smp",
        {"mesh": Mesh(shard=2, context=2, tensor=2), "library": Library.VERSION2},
    ),
    (
        version2(sm_activation_offloading=True, activation_loading_horizon=3),
        2,
        "fully_shard",
        {"mesh": Mesh(shard=2), "checkpointing": True, "offloading": True, "horizon": 3},
    ),
]


@pytest.mark.parametrize(("raw", "ranks", "wrapper", "members"), CASES)
def test_a_dict_becomes_a_layout(raw: dict[str, Any], ranks: int, wrapper: str, members: dict[str, Any]) -> None:
    layout = layout_of(parse(raw), ranks, measured(wrapper=wrapper))
    assert {name: getattr(layout, name) for name in members} == members


def test_batches_that_are_divided_over_the_ranks_shrink() -> None:
    assert layout_of(parse(TORCH), 4, measured(batch_divides=True, ranks=2)).batch_scale == 0.5


@pytest.mark.parametrize(
    ("raw", "ranks", "changes", "message"),
    [
        ({"parameter_server": {"enabled": True}}, 2, {}, "parameter_server is not predicted"),
        ({"multi_worker_mirrored_strategy": {"enabled": True}}, 2, {}, "not predicted"),
        ({"pytorchxla": {"enabled": True}}, 2, {}, "pytorch_xla is not predicted"),
        ({"mpi": {"enabled": True}}, 2, {"wrapper": ""}, "Horovod's sums are not predicted"),
        (TORCH, 2, {"wrapper": "", "ranks": 2}, "would each train a model of their own"),
        (TORCH, 2, {"wrapper": "smp"}, "cannot run it"),
        (TORCH, 1, {"wrapper": "smp"}, "the dict does not enable it"),
        (version1(partitions=2), 2, {}, "Use smp.DistributedModel in the script"),
        (version1(partitions=2, pipeline="_only_forward"), 2, {"wrapper": "smp"}, "trains nothing"),
        (version1(partitions=2, auto_partition=False, default_partition=0), 2, {"wrapper": "smp"}, "auto_partition"),
        (version2(tensor_parallel_degree=2), 2, {}, "Use torch.sagemaker's shard"),
        (SMDDP, 2, {"framework": "tensorflow"}, "only PyTorch is predicted"),
    ],
)
def test_what_is_not_predicted_is_refused_with_the_reason(
    raw: dict[str, Any], ranks: int, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ParallelError, match=message):
        layout_of(parse(raw), ranks, measured(**changes))


def test_live_microbatches_of_each_schedule() -> None:
    assert Layout(microbatches=8, active=3).live == 3
    assert Layout(microbatches=2, active=3).live == 2
    assert Layout(microbatches=8, active=3, pipeline="simple").live == 8
