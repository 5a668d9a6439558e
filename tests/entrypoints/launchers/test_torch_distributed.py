"""The variables by which accelerate and Hugging Face's Trainer shard a model as the job's keys say."""

from __future__ import annotations

from typing import Any

import pytest

from herringbone_contract.errors import DistributionError
from herringbone_contract.model_parallel.version2 import ModelParallelV2Parameters
from herringbone_entry.launchers.torch_distributed import accelerate_environment, give_way

FSDP = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_RESHARD_AFTER_FORWARD": "true",
    "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT",
}


def sizes(replicate: int = 1, shard: int = 1, context: int = 1, tensor: int = 1) -> dict[str, str]:
    return {
        "ACCELERATE_USE_PARALLELISM_CONFIG": "true",
        "PARALLELISM_CONFIG_DP_REPLICATE_SIZE": str(replicate),
        "PARALLELISM_CONFIG_DP_SHARD_SIZE": str(shard),
        "PARALLELISM_CONFIG_CP_SIZE": str(context),
        "PARALLELISM_CONFIG_TP_SIZE": str(tensor),
    }


@pytest.mark.parametrize(
    ("parameters", "ranks", "expected"),
    [
        # Every rank holds a shard.
        ({"random_seed": 1}, 4, sizes(shard=4) | FSDP),
        ({"hybrid_shard_degree": 2}, 4, sizes(replicate=2, shard=2) | FSDP),
        # The ranks of one context share the training state, too.
        ({"hybrid_shard_degree": 4, "context_parallel_degree": 2}, 8, sizes(2, 2, 2) | FSDP),
        ({"context_parallel_degree": 2}, 2, sizes(context=2) | FSDP),
        ({"tensor_parallel_degree": 2}, 4, sizes(shard=2, tensor=2) | FSDP),
        # Each rank has all of its part of a layer, and our completion of accelerate shards that over one rank.
        ({"tensor_parallel_degree": 2}, 2, sizes(tensor=2) | FSDP),
        # Plain replicas are accelerate's default.
        ({"hybrid_shard_degree": 1}, 4, {}),
        ({"random_seed": 1}, 1, {}),
        (
            {"sm_activation_offloading": True},
            2,
            sizes(shard=2)
            | FSDP
            | {"FSDP_ACTIVATION_CHECKPOINTING": "true", "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD": "true"},
        ),
    ],
)
def test_the_variables_name_the_jobs_mesh(parameters: dict[str, Any], ranks: int, expected: dict[str, str]) -> None:
    assert accelerate_environment(ModelParallelV2Parameters(**parameters), ranks) == expected


def test_a_job_without_version_2_gets_no_variables() -> None:
    assert accelerate_environment(None, 4) == {}


def test_degrees_that_do_not_divide_the_ranks_are_refused() -> None:
    with pytest.raises(DistributionError, match="hybrid_shard_degree 3 does not divide 4 ranks"):
        accelerate_environment(ModelParallelV2Parameters(hybrid_shard_degree=3), 4)


def test_the_users_variables_win_and_only_other_values_are_named() -> None:
    users = {"FSDP_VERSION": "1", "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT", "PATH": "/bin"}
    variables, line = give_way(FSDP, users)
    rest = {name: value for name, value in FSDP.items() if name not in users}
    assert variables == rest | {"HERRINGBONE_ACCELERATE": ",".join(rest)}
    assert line == "FSDP_VERSION=1 of `environment` counts; this job's distribution alone would set FSDP_VERSION=2"
    assert give_way({}, users) == ({}, "")


def test_degrees_that_the_ranks_of_the_training_hosts_do_not_fit_fail_the_job(make_job) -> None:
    job = make_job(hosts=3)
    job.groups = {"cpu": ["algo-1"], "train": ["algo-2", "algo-3"]}
    job.write(
        "print('ran')", sagemaker_torch_distributed_enabled=True, sagemaker_distribution_instance_groups=["train"],
        mp_parameters={"tensor_parallel_degree": 4},
    )  # fmt: skip
    ended = job.run()
    assert {result.code for result in ended.values()} == {1}
    assert "tensor_parallel_degree 4 does not divide 2 ranks" in ended["algo-2"].failure_text
    assert "(2 hosts x 1 processes_per_host)" in ended["algo-2"].failure_text
    assert not any(result.rank_lines for result in ended.values())
