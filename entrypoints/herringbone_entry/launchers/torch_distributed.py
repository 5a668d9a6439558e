"""`torch_distributed`: the variables that torchrun and `accelerate launch` would have set, without these programs.

The reason is in docs/decisions/002-torchrun-without-torchrun.md. Source of the names and values: PyTorch's "torchrun
(Elastic Launch)" page; a test compares them with torchrun's own.
"""

from __future__ import annotations

from collections.abc import Mapping

from herringbone_contract.layout import RankPlacement
from herringbone_contract.model_parallel.version2 import ModelParallelV2Parameters

ROLE = "default"
# Names the variables of accelerate that the launcher has set: a script that shards by itself drops them.
ACCELERATE = "HERRINGBONE_ACCELERATE"


def environment(placement: RankPlacement, *, run_id: str) -> dict[str, str]:
    """Return what torchrun adds to the common variables of a rank."""
    return {
        "GROUP_WORLD_SIZE": str(placement.num_hosts),
        "ROLE_RANK": str(placement.rank),
        "ROLE_WORLD_SIZE": str(placement.world_size),
        "ROLE_NAME": ROLE,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": run_id,
        # Rank 0 hosts the rendezvous store: torchrun's agent, which would host it, does not exist here.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


def accelerate_environment(parameters: ModelParallelV2Parameters | None, ranks: int) -> dict[str, str]:
    """Return what accelerate reads, and with it Hugging Face's Trainer, so that it shards as the job's keys say.

    >>> from herringbone_contract.model_parallel.version2 import ModelParallelV2Parameters
    >>> variables = accelerate_environment(ModelParallelV2Parameters(hybrid_shard_degree=2), 4)
    >>> variables["PARALLELISM_CONFIG_DP_REPLICATE_SIZE"], variables["PARALLELISM_CONFIG_DP_SHARD_SIZE"]
    ('2', '2')

    Empty without version 2 of `modelparallel`, and where the ranks are plain replicas, which need no variables. Raises
    `DistributionError` when the degrees do not divide the ranks. Source of the names: accelerate 1.15,
    `parallelism_config.py`, and `utils/dataclasses.py`.
    """
    if parameters is None:
        return {}
    settings = parameters.resolved()
    mesh = settings.mesh(ranks)
    if mesh.replicate == mesh.ranks:
        return {}
    variables = {
        "ACCELERATE_USE_PARALLELISM_CONFIG": "true",
        "PARALLELISM_CONFIG_DP_REPLICATE_SIZE": str(mesh.replicate),
        "PARALLELISM_CONFIG_DP_SHARD_SIZE": str(mesh.shard),
        "PARALLELISM_CONFIG_CP_SIZE": str(mesh.context),
        "PARALLELISM_CONFIG_TP_SIZE": str(mesh.tensor),
        "ACCELERATE_USE_FSDP": "true",
        "FSDP_VERSION": "2",
        "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
        "FSDP_RESHARD_AFTER_FORWARD": "true",
        # Trainer's `save_model` writes nothing of a model whose states are saved in shards.
        "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT",
    }
    if settings.sm_activation_offloading:
        variables |= {"FSDP_ACTIVATION_CHECKPOINTING": "true", "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD": "true"}
    return variables


def give_way(variables: Mapping[str, str], inherited: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """Return the variables that the user's `environment` does not set, and a line for the log about the others.

    >>> give_way({"FSDP_VERSION": "2"}, {"FSDP_VERSION": "1"})[1]
    "FSDP_VERSION=1 of `environment` counts; this job's distribution alone would set FSDP_VERSION=2"

    The line is empty if no value differs. Pure.
    """
    conflicts = [name for name, value in variables.items() if inherited.get(name, value) != value]
    left = {name: value for name, value in variables.items() if name not in inherited}
    if left:
        left[ACCELERATE] = ",".join(left)
    if not conflicts:
        return left, ""
    users = " ".join(f"{name}={inherited[name]}" for name in conflicts)
    ours = " ".join(f"{name}={variables[name]}" for name in conflicts)
    return left, f"{users} of `environment` counts; this job's distribution alone would set {ours}"
