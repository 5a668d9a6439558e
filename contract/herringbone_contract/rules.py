"""Rules across keys of a `distribution`: strategies that exclude each other, and values that need another value.

`check_layout` has the rules that need the size of the job, `with_instance_groups` those that need its instance groups.
If AWS's SDK has a sentence for a mistake, our message begins with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET

from herringbone_contract.errors import DistributionError
from herringbone_contract.launcher import Launcher
from herringbone_contract.model_parallel.mesh import Mesh
from herringbone_contract.model_parallel.values import value_or
from herringbone_contract.model_parallel.version1 import ModelParallelParameters
from herringbone_contract.served import PARAMETERS, VERSION1
from herringbone_contract.strategies import Distribution, Framework, enabled_strategies

if TYPE_CHECKING:
    from collections.abc import Sequence

DATA_PARALLEL = "distribution.smdistributed.dataparallel"

# The strategies of each framework. The container would ignore any other one, and the job would train with one process
# per host at full price.
_STRATEGIES_OF: dict[str, frozenset[str]] = {
    "pytorch": frozenset({"smdistributed", "mpi", "pytorchddp", "torch_distributed", "pytorchxla"}),
    "huggingface": frozenset({"smdistributed", "mpi", "pytorchddp", "torch_distributed", "pytorchxla"}),
    "tensorflow": frozenset({"smdistributed", "mpi", "parameter_server", "multi_worker_mirrored_strategy"}),
    "mxnet": frozenset({"mpi", "parameter_server"}),
}


def check(distribution: Distribution, framework: Framework | None) -> None:
    """Raise `DistributionError` for strategies that exclude each other, or values that need another."""
    _check_framework(distribution, framework)
    # The framework first: of two strategies, the one that the framework lacks is the mistake to report.
    _check_one_strategy(distribution)
    _check_data_parallel(distribution)
    if distribution.model_parallel is not None:
        _check_partitions(distribution.model_parallel)
        _check_data_parallel_keys(distribution.model_parallel)
        _check_framework_keys(distribution.model_parallel, framework)
    # AWS's SDK refuses this as well, so such a job would fail there.
    if distribution.instance_groups and distribution.launcher is Launcher.PLAIN:
        raise DistributionError(
            "distribution.instance_groups: Don't set training instance groups while no distribution strategies"
            " enabled! Enable one, for example 'mpi': {'enabled': True}, or leave instance_groups out."
        )


def _check_framework(distribution: Distribution, framework: Framework | None) -> None:
    if framework is None:
        return
    legal = _STRATEGIES_OF[framework]
    for name in enabled_strategies(distribution):
        key = name.partition(".")[0]
        if key not in legal:
            raise DistributionError(
                f"distribution.{name}: not a strategy of {framework}; it would be ignored there."
                f" {framework} can use: {', '.join(sorted(legal))}."
            )


def _check_one_strategy(distribution: Distribution) -> None:
    enabled = enabled_strategies(distribution)
    if "pytorchddp" in enabled and any(name.startswith("smdistributed.") for name in enabled):
        raise DistributionError(
            "distribution: Cannot use both pytorchddp and smdistributed distribution options together. Keep one."
        )
    if {"smdistributed.dataparallel", "smdistributed.modelparallel"} <= set(enabled):
        raise DistributionError(
            "distribution.smdistributed: Cannot use more than 1 smdistributed strategy. Keep dataparallel or"
            " modelparallel; modelparallel brings its own data parallelism ('ddp': True or 'horovod': True)."
        )
    # modelparallel starts no ranks: it needs a launcher next to it.
    launchers = [name for name in enabled if name != "smdistributed.modelparallel"]
    if "smdistributed.dataparallel" in enabled and "mpi" in enabled:
        # `mpi` next to it gives the number of ranks per host, and has mpirun start them.
        launchers.remove("mpi")
    if len(launchers) > 1:
        raise DistributionError(
            f"distribution: two strategies at once: {' and '.join(launchers)}. Each starts the ranks by itself, so a"
            " job can have one; set 'enabled': False on the others."
        )
    if "smdistributed.modelparallel" in enabled and launchers not in (["mpi"], ["torch_distributed"]):
        start = f"with {launchers[0]}" if launchers else "by itself"
        raise DistributionError(
            f"distribution.smdistributed.modelparallel: it cannot start {start}; it runs under MPI."
            " Add 'mpi': {'enabled': True, 'processes_per_host': N}"
            " (or 'torch_distributed': {'enabled': True} for version 2 of the library)."
        )


def _check_data_parallel(distribution: Distribution) -> None:
    mpi, data_parallel = value_or(distribution.mpi, None), distribution.data_parallel
    if data_parallel is None:
        return
    if mpi is not None and mpi.enabled and mpi.custom_mpi_options and data_parallel.custom_mpi_options:
        raise DistributionError(
            "distribution: custom_mpi_options is in mpi and in smdistributed.dataparallel, and there is one mpirun."
            " Give all of them in mpi."
        )
    if data_parallel.helpers is not UNSET and data_parallel.helpers in value_or(distribution.instance_groups, ()):
        raise DistributionError(
            f"{DATA_PARALLEL}.helpers: {data_parallel.helpers} is also in distribution.instance_groups, the groups to"
            " train on. A host trains or helps; name another group in one of the two."
        )


def _check_partitions(parameters: ModelParallelParameters) -> None:
    partitions, degree = parameters.partitions, parameters.pipeline_parallel_degree
    # A model may be split in another way than into partitions.
    others = (parameters.tensor_parallel_degree, parameters.sharded_data_parallel_degree)
    if partitions is UNSET and degree is UNSET and all(other is UNSET for other in others):
        raise DistributionError(
            f"{PARAMETERS}.partitions: missing: say into how many partitions to split the model, for example"
            " 'partitions': 2. (pipeline_parallel_degree is another name for it.)"
        )
    if partitions is not UNSET and degree is not UNSET and partitions != degree:
        raise DistributionError(
            f"{PARAMETERS}: partitions is {partitions} and pipeline_parallel_degree is {degree}, but they are two"
            " names for one thing. Keep one of them."
        )
    # Without automatic partitioning nothing else decides about modules that the script does not place.
    if parameters.auto_partition is False and parameters.default_partition is UNSET:
        raise DistributionError(
            f"{PARAMETERS}.default_partition: default_partition must be supplied if auto_partition is set to False!"
            " It is the partition of whatever smp.partition does not place, for example 'default_partition': 0."
        )
    default = value_or(parameters.default_partition, 0)
    if default >= parameters.pipeline_degree:
        raise DistributionError(
            f"{PARAMETERS}.default_partition: default_partition must be less than the number of partitions!"
            f" Got {default} of {parameters.pipeline_degree} partitions, which are numbered from 0."
        )
    if parameters.load_partition is True and parameters.partition_file is UNSET:
        raise DistributionError(
            f"{PARAMETERS}.load_partition: needs `partition_file`, the file to load the partition from."
        )


def _check_data_parallel_keys(parameters: ModelParallelParameters) -> None:
    resolved = parameters.resolved()
    if resolved.horovod and resolved.ddp:
        raise DistributionError(
            f"{PARAMETERS}: 'ddp' and 'horovod' cannot be simultaneously enabled."
            " Keep 'ddp' for PyTorch, 'horovod' for TensorFlow."
        )
    for key in ("ddp_port", "ddp_dist_backend"):
        if getattr(parameters, key) is not UNSET and parameters.ddp is UNSET:
            raise DistributionError(f"{PARAMETERS}.{key}: `{key}` needs `ddp` to be set as well: add 'ddp': True.")
    for key in ("tensor_parallel_degree", "sharded_data_parallel_degree"):
        if (degree := value_or(getattr(parameters, key), 1)) > 1 and not resolved.ddp:
            raise DistributionError(f"{PARAMETERS}.{key}: {degree} needs `ddp` to be True as well: add 'ddp': True.")
    if resolved.sharded > 1 and parameters.shard_optimizer_state is True:
        raise DistributionError(
            f"{PARAMETERS}.shard_optimizer_state: sharded_data_parallel_degree already shards the optimizer's state."
            " Leave shard_optimizer_state out."
        )
    if parameters.shard_optimizer_state is True and not resolved.ddp:
        raise DistributionError(
            f"{PARAMETERS}.shard_optimizer_state: it divides the optimizer's state over replicas, which need `ddp`: add"
            " 'ddp': True."
        )
    if parameters.bf16 is True and parameters.fp16 is True:
        raise DistributionError(f"{PARAMETERS}: 'fp16' and 'bf16' cannot be simultaneously enabled. Keep one.")


def _check_framework_keys(parameters: ModelParallelParameters, framework: Framework | None) -> None:
    """Refuse a key that no library reads for the framework, rather than ignore it."""
    titles = {"pytorch": "PyTorch", "tensorflow": "TensorFlow"}
    for key, setting in VERSION1.items():
        frameworks = setting.herringbone | setting.aws
        if getattr(parameters, key) is UNSET or framework not in titles or framework in frameworks:
            continue
        owner = " and ".join(titles[name] for name in sorted(frameworks))
        raise DistributionError(f"{PARAMETERS}.{key}: for {owner} only; leave it out for {titles[framework]}.")
    placement = value_or(parameters.placement_strategy, "cluster")
    if framework == "tensorflow" and placement not in ("cluster", "spread"):
        raise DistributionError(
            f"{PARAMETERS}.placement_strategy: for TensorFlow, placement_strategy must be a value in:"
            f" ['cluster', 'spread']. Got {placement!r}: the letters place tensor parallelism, which is PyTorch's."
        )


def check_layout(distribution: Distribution, *, hosts: int, processes_per_host: int) -> None:
    """Raise `DistributionError` when the degrees of parallelism do not divide the ranks, as `mesh` has the rule."""
    try:
        mesh_of(distribution, hosts * processes_per_host)
    except DistributionError as error:
        world = f"{hosts} hosts x {processes_per_host} processes_per_host"
        raise DistributionError(f"{PARAMETERS}: {error} ({world}).") from None


def mesh_of(distribution: Distribution, ranks: int) -> Mesh | None:
    """Return the mesh of a job with so many ranks; None where nothing splits or shards the model.

    >>> from herringbone_contract.distribution import parse
    >>> mesh_of(parse({"torch_distributed": {"enabled": True}}), 4)

    Raises `DistributionError` when the degrees do not divide the ranks.
    """
    parameters = distribution.model_parallel or distribution.model_parallel_v2
    return None if parameters is None else parameters.resolved().mesh(ranks)


def with_instance_groups(distribution: Distribution, groups: Sequence[str]) -> Distribution:
    """Return the distribution with the group to train on filled in, for an estimator that has these groups.

    A single group next to the helpers' group needs no name. Raises `DistributionError` when the names do not fit the
    estimator's.
    """
    # Helpers never train, so their group is not one to choose from.
    if distribution.helpers is not None:
        _check_helpers(distribution.helpers, groups)
        groups = [group for group in groups if group != distribution.helpers]
    chosen_names = value_or(distribution.instance_groups, ())
    place = "distribution.instance_groups"
    names = ", ".join(groups)
    if not chosen_names and (not groups or distribution.launcher is Launcher.PLAIN):
        return distribution
    if not groups:
        raise DistributionError(
            f"{place}: Instance groups not specified in the estimator ! This names {', '.join(chosen_names)};"
            " give the estimator instance_groups, or leave this out."
        )
    if len(chosen_names) > len(groups):
        raise DistributionError(
            f"{place}: Train instance groups oversubscribed ! {len(chosen_names)} named, the estimator has: {names}."
        )
    for name in chosen_names:
        if name not in groups:
            raise DistributionError(f"{place}: Invalid training instance group {name} ! The estimator has: {names}.")
    if len(groups) > 1 and len(chosen_names) != 1:
        raise DistributionError(
            f"{place}: Distribution should only contain one instance group name ! Name the one to train on: {names}."
        )
    return msgspec.structs.replace(distribution, instance_groups=chosen_names or tuple(groups))


def _check_helpers(helpers: str, groups: Sequence[str]) -> None:
    place, names = f"{DATA_PARALLEL}.helpers", ", ".join(groups)
    if not groups:
        raise DistributionError(
            f"{place}: helper hosts are an instance group of the job, and the estimator has no groups. In place of"
            " instance_type and instance_count give instance_groups=[InstanceGroup('gpu', ...),"
            f" InstanceGroup({helpers!r}, ...)]."
        )
    if helpers not in groups:
        raise DistributionError(f"{place}: there is no instance group {helpers!r}. The estimator has: {names}.")
    if len(groups) == 1:
        raise DistributionError(
            f"{place}: {helpers} is the only instance group, and no host is left to train on. Add a group for training."
        )
