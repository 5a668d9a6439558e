"""The start message from a supervisor to a rank: the rank's environment, and the program to run."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from herringbone_contract.constants import HostVariable, Key, RankVariable, ReduceVariable
from herringbone_contract.launcher import Launcher
from herringbone_contract.layout import Layout, RankPlacement
from herringbone_entry.channel import attach, interfaces
from herringbone_entry.channel.frames import Message
from herringbone_entry.channel.rendezvous import Rendezvous, rendezvous_variables
from herringbone_entry.host import Host
from herringbone_entry.host_context import HostContext
from herringbone_entry.preparation.prepare import Prepared
from herringbone_entry.ranks import host_names
from herringbone_entry.ranks.environment import (
    THREADS,
    accelerate_environment,
    python_environment,
    rank_environment,
    thread_environment,
    with_partitions,
)

# Hugging Face's Trainer looks for this variable, too.
_MODEL_PARALLEL = f"SM_HP_{Key.MODEL_PARALLEL_PARAMETERS.upper()}"


def start_message(
    placement: RankPlacement,
    prepared: Prepared,
    host: Host,
    *,
    rendezvous: Rendezvous,
    variables: Mapping[str, str],
    interface: str | None,
    token: str,
) -> Message:
    """Return the start message of one rank.

    `variables` are those of all ranks of this host, `interface` leads to the other hosts, and `token` is the secret of
    the job's ranks. `environment` in the message holds the variables that the rank inherits neither from its supervisor
    nor through mpirun. `first_paths` and `last_paths` are the ends of its `sys.path`. `listen` is where torch's
    rendezvous store listens, empty for all addresses. Each of `secrets` is a descriptor, and the variable of that name
    points to it.
    """
    inherited = host.base_environment
    place_in_job = rank_environment(placement, master_address=rendezvous.address, master_port=rendezvous.port)
    # Later entries win: the launcher's variables must not be overwritten by the host's.
    environment = {**prepared.environment, **variables, **place_in_job}
    # Below, a launcher's module is imported only by its own jobs.
    # Secrets are no variables: every child and every crash report copies those.
    key = host.environ.get(HostVariable.REMOTE_KEY)
    secrets = {} if key is None else {HostVariable.REMOTE_KEY: key}
    if prepared.launcher is not Launcher.PLAIN:
        # A script may use the data-parallel library under any launcher.
        environment |= rendezvous_variables(rendezvous)
        environment |= _hugging_face_environment(placement, prepared, inherited)
        secrets[ReduceVariable.TOKEN_FILE] = token
    if prepared.launcher is Launcher.TORCH_DISTRIBUTED:
        from herringbone_entry.launchers import torch_distributed

        environment |= torch_distributed.environment(placement, run_id=host.job_name or "none")
    # Only when TensorFlow connects the ranks, with ports that each host reserved for it.
    if rendezvous.tensorflow:
        from herringbone_entry.launchers import tensorflow_cluster

        environment[tensorflow_cluster.VARIABLE] = tensorflow_cluster.rank_config(rendezvous.tensorflow, placement.rank)
    if prepared.launcher is Launcher.MXNET_PARAMETER_SERVER:
        from herringbone_entry.launchers import mxnet_cluster

        environment |= mxnet_cluster.environment(
            "worker", rendezvous, hosts=placement.num_hosts, on_one_machine=host.on_one_machine, interface=interface
        )
    is_seen = host.environ.get(HostVariable.OBSERVER) != "off" or host.hang_timeout(placement.world_size)
    if placement.world_size > 1 and is_seen:
        # torch then records the last collective operations, for a few microseconds each.
        environment |= {name: value for name, value in attach.RECORDER.items() if name not in inherited}
    environment |= interfaces.variables(host, interface)
    environment |= _child_environment(prepared, host, rendezvous.names) | _replicas_environment(host)
    return {
        "environment": environment,
        "code": str(host.paths.code),
        "entry": prepared.program.entry,
        "program": prepared.program.name,
        "arguments": list(prepared.arguments),
        "first_paths": prepared.program.search_path(Path(host.paths.code)),
        "last_paths": list(prepared.shims),
        "secrets": secrets,
        # Only rank 0 has torch's rendezvous store.
        "listen": rendezvous.listen if placement.rank == 0 else "",
        "trainer_hooks": _trainer_hooks(prepared),
    }


def _child_environment(prepared: Prepared, host: Host, names: Mapping[str, str]) -> dict[str, str]:
    """Return what Pythons that the script starts read; `names` are those of hosts that they have to resolve."""
    shims = (*prepared.shims, host_names.CHILD_PYTHON) if names else prepared.shims
    environment = python_environment(host.base_environment, code=str(host.paths.code), shims=shims)
    return {**environment, RankVariable.HOST_NAMES: json.dumps(names, separators=(",", ":"))} if names else environment


def _replicas_environment(host: Host) -> dict[str, str]:
    every = host.steering.get(Key.CHECK_REPLICAS_EVERY)
    return {HostVariable.CHECK_REPLICAS: str(every)} if every else {}


def _hugging_face_environment(
    placement: RankPlacement, prepared: Prepared, inherited: Mapping[str, str]
) -> dict[str, str]:
    """Return what Hugging Face's Trainer and accelerate read in a rank of a job with several, or of AWS's library."""
    data_parallel = prepared.launcher is Launcher.DATA_PARALLEL
    values = {"SMDATAPARALLEL_LOCAL_RANK": str(placement.local_rank)} if data_parallel else {}
    if placement.world_size > 1 or data_parallel:
        values |= accelerate_environment(inherited, num_gpus=int(prepared.environment["SM_NUM_GPUS"]))
    if prepared.launcher is Launcher.MPI and _MODEL_PARALLEL in prepared.environment:
        values[_MODEL_PARALLEL] = with_partitions(prepared.environment[_MODEL_PARALLEL])
    return values


def _trainer_hooks(prepared: Prepared) -> str:
    """Return the module that makes the branches of Hugging Face's Trainer for AWS's libraries work; "" for none."""
    if _MODEL_PARALLEL in prepared.environment and prepared.launcher is Launcher.MPI:
        return "herringbone_parallel.torch.model_parallel.hugging_face.trainer"
    return (
        "herringbone_parallel.torch.data_parallel.hugging_face" if prepared.launcher is Launcher.DATA_PARALLEL else ""
    )


def thread_limits(
    context: HostContext, prepared: Prepared, layout: Layout, machine_ranks: Mapping[str, int]
) -> dict[str, str]:
    """Return the variables that limit the threads of this host's ranks; the first host says so in the log.

    `machine_ranks` are the ranks of all hosts on each host's machine.
    """
    host = context.host
    num_local, num_on_machine = len(layout.ranks(host.name)), machine_ranks.get(host.name, 0)
    if not num_local:
        return {}
    machine_cpus = os.cpu_count() or 1
    threads = thread_environment(
        host.base_environment,
        num_local=num_local,
        num_cpus=int(prepared.environment["SM_NUM_CPUS"]),
        num_on_machine=num_on_machine,
        machine_cpus=machine_cpus,
    )
    if threads and host.is_first:
        context.log(
            f"{THREADS}={threads[THREADS]}: {num_on_machine} ranks share this machine's {machine_cpus} cores; set "
            f"{THREADS} in `environment` for another number"
        )
    return threads


def sharding_variables(context: HostContext, prepared: Prepared, layout: Layout) -> dict[str, str]:
    """Return what accelerate reads in a job whose model is sharded; the first host logs the variables of the user's."""
    if prepared.sharding is None:
        return {}
    from herringbone_entry.launchers.torch_distributed import accelerate_environment, give_way

    host = context.host
    variables, conflict = give_way(accelerate_environment(prepared.sharding, layout.world_size), host.base_environment)
    if conflict and host.is_first:
        context.log(conflict)
    return variables
