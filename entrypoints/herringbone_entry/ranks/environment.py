"""The environment variables of a rank: pure functions of the host and the rank."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from herringbone_contract.constants import Key, RankVariable
from herringbone_contract.hyperparameters import arguments
from herringbone_contract.layout import RankPlacement
from herringbone_contract.resources import threads_of_rank
from herringbone_contract.variables import FIELDS
from herringbone_entry.host import Host

DEFAULT_LOG_LEVEL = 20
# OpenMP's own variable, which torch, NumPy's BLAS and MKL read.
THREADS = "OMP_NUM_THREADS"
# Hugging Face's Trainer posts its progress to this address, with the token in the file of that path.
_STATUS_URL, _STATUS_TOKEN = "KUBEFLOW_TRAINER_SERVER_URL", "KUBEFLOW_TRAINER_SERVER_TOKEN"
_LOOPBACK = "127.0.0.1"
_USE_CPU = "ACCELERATE_USE_CPU"
_UNBUFFERED = "PYTHONUNBUFFERED"


def contract_environment(host: Host, *, num_cpus: int, num_gpus: int) -> dict[str, str]:
    """Return the `SM_*` variables of a host's ranks.

    Source: the page "Environment variables" of SageMaker's training toolkit. A hyperparameter whose name has a hyphen
    comes in two spellings: some shells drop `SM_HP_BATCH-SIZE`, and older scripts read no other name.
    """
    description = _describe(host, num_cpus=num_cpus, num_gpus=num_gpus)
    values: dict[str, Any] = {
        **{name: description[name] for name in FIELDS},
        "hps": description["hyperparameters"],
        "framework_params": description["additional_framework_parameters"],
        "user_args": arguments(host.hyperparameters),
        "channels": sorted(host.input_data_config),
        "training_env": description,
        # Ours: scripts that use it need no `/opt/ml/checkpoints`, which exists in containers only.
        "checkpoint_dir": host.checkpoints,
    }
    for channel, path in description["channel_input_dirs"].items():
        values[f"channel_{channel}"] = path
    for name, value in host.hyperparameters.items():
        values[f"hp_{name}"] = value
        if "-" in name:
            values[f"hp_{name.replace('-', '_')}"] = value
    return {f"SM_{name.upper()}": encode(value) for name, value in values.items()}


def rank_environment(placement: RankPlacement, *, master_address: str, master_port: int) -> dict[str, str]:
    """Return the variables that give a rank its number and the address of rank 0."""
    return {
        RankVariable.RANK: str(placement.rank),
        RankVariable.WORLD_SIZE: str(placement.world_size),
        RankVariable.LOCAL_RANK: str(placement.local_rank),
        RankVariable.LOCAL_WORLD_SIZE: str(placement.num_local),
        RankVariable.GROUP_RANK: str(placement.host_index),
        RankVariable.MASTER_ADDRESS: master_address,
        RankVariable.MASTER_PORT: str(master_port),
    }


def python_environment(inherited: Mapping[str, str], *, code: str, shims: Sequence[str] = ()) -> dict[str, str]:
    """Return the variables for the Pythons that a script starts: the path to the job's code, and output at once.

    >>> python_environment({"PYTHONPATH": "/mine"}, code="/opt/ml/code", shims=["/shim"])
    {'PYTHONPATH': '/opt/ml/code:/mine:/shim', 'PYTHONUNBUFFERED': '1'}

    A child inherits neither `sys.path` nor the line buffering of the rank. Python would keep its output until 8 KiB are
    full, and a signal that ends it would take them along. The shims come last, so that the user's packages win. The
    second variable is left out if the user has set it, to an empty text for example, with which Python buffers.
    """
    path = os.pathsep.join(filter(None, [code, inherited.get("PYTHONPATH"), *shims]))
    return {"PYTHONPATH": path, **({} if _UNBUFFERED in inherited else {_UNBUFFERED: "1"})}


def thread_environment(
    inherited: Mapping[str, str], *, num_local: int, num_cpus: int, num_on_machine: int, machine_cpus: int
) -> dict[str, str]:
    """Return the number of threads of a rank, so that the ranks of one machine share its cores.

    Without it each rank would start a thread per core. `num_local` ranks share the `num_cpus` of their host, and
    `num_on_machine` ranks of all hosts there share the machine's. Empty for a lone rank, or if the user set the number.

    >>> thread_environment({}, num_local=2, num_cpus=8, num_on_machine=4, machine_cpus=8)
    {'OMP_NUM_THREADS': '2'}
    """
    threads = threads_of_rank(
        num_local=num_local, num_cpus=num_cpus, num_on_machine=num_on_machine, machine_cpus=machine_cpus
    )
    return {} if threads is None or THREADS in inherited else {THREADS: str(threads)}


def status_environment(inherited: Mapping[str, str], *, port: int, token_path: str) -> dict[str, str]:
    """Return the variables by which a Hugging Face Trainer posts its progress to a port of the loopback interface.

    >>> status_environment({}, port=4000, token_path="/proc/7/fd/9")["KUBEFLOW_TRAINER_SERVER_URL"]
    'http://127.0.0.1:4000/'

    Empty if the user has set the address. The posts must not go through the user's proxy: urllib prefers variables in
    lower case, and `no_proxy` lists the exceptions.
    """
    if _STATUS_URL in inherited:
        return {}
    variables = {_STATUS_URL: f"http://{_LOOPBACK}:{port}/", _STATUS_TOKEN: token_path}
    exceptions = inherited.get("no_proxy", inherited.get("NO_PROXY", "")).strip()
    has_proxy = any(name.lower() in ("http_proxy", "all_proxy") for name in inherited)
    if has_proxy and _LOOPBACK not in exceptions and exceptions != "*":
        variables["no_proxy"] = ",".join(filter(None, [exceptions, _LOOPBACK]))
    return variables


def accelerate_environment(inherited: Mapping[str, str], *, num_gpus: int) -> dict[str, str]:
    """Return the variable by which Hugging Face's accelerate connects ranks without GPUs; its launcher sets it, too.

    >>> accelerate_environment({}, num_gpus=0)
    {'ACCELERATE_USE_CPU': 'true'}

    Without it every rank of `Accelerator()` or `Trainer` trains alone, on all the data, and reports no error. Empty
    with GPUs, and if the user has set the variable. Source: accelerate 1.15, `PartialState._prepare_backend`.
    """
    return {} if num_gpus or _USE_CPU in inherited else {_USE_CPU: "true"}


def with_partitions(parameters: str) -> str:
    """Return the model-parallel parameters, JSON, with the number of partitions under `partitions`, too.

    >>> with_partitions('{"pipeline_parallel_degree":2}')
    '{"partitions":2,"pipeline_parallel_degree":2}'

    Hugging Face's transformers knows no other name, and would train without the library. Source: transformers 5.23,
    `is_sagemaker_mp_enabled`.
    """
    values = json.loads(parameters)
    return encode({"partitions": values.get("pipeline_parallel_degree", 1), **values})


def encode(value: Any) -> str:
    """Write a value as the contract does: text unchanged, None as an empty text, all else as compact, sorted JSON.

    >>> encode("a b"), encode(None), encode({"b": 1, "a": [True]})
    ('a b', '', '{"a":[true],"b":1}')
    """
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, PurePath):
        return str(value)
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)


def _describe(host: Host, *, num_cpus: int, num_gpus: int) -> dict[str, Any]:
    """Return the fields of SM_TRAINING_ENV."""
    paths, resources, steering = host.paths, host.resources, host.steering
    program, address = str(steering.get(Key.PROGRAM, "")), str(steering.get(Key.SUBMIT_DIRECTORY, ""))
    current_group = resources.group(resources.current_group_name)
    return {
        "additional_framework_parameters": steering,
        "channel_input_dirs": {name: str(paths.channel(name)) for name in sorted(host.input_data_config)},
        "current_host": host.name,
        "current_instance_group": current_group.name,
        "current_instance_group_hosts": list(current_group.hosts),
        "current_instance_type": resources.current_instance_type,
        "distribution_instance_groups": steering.get(Key.DISTRIBUTION_INSTANCE_GROUPS, []),
        "framework_module": "",
        "hosts": list(resources.hosts),
        "hyperparameters": host.hyperparameters,
        "input_config_dir": str(paths.config),
        "input_data_config": host.input_data_config,
        "input_dir": str(paths.input),
        "instance_groups": [group.name for group in resources.groups],
        "instance_groups_dict": {
            group.name: {
                "hosts": list(group.hosts),
                "instance_group_name": group.name,
                "instance_type": group.instance_type,
            }
            for group in resources.groups
        },
        "is_hetero": len(resources.groups) > 1,
        "is_master": host.is_first,
        "job_name": host.job_name,
        "log_level": steering.get(Key.LOG_LEVEL, DEFAULT_LOG_LEVEL),
        "master_hostname": resources.first_host,
        "model_dir": str(paths.model),
        # A bucket, from which scripts for AWS's images take places of their own; else the folder of the script.
        "module_dir": address if address.startswith("s3://") else str(paths.code),
        "module_name": program.removesuffix(".py"),
        "network_interface_name": resources.network_interface,
        "num_cpus": num_cpus,
        "num_gpus": num_gpus,
        "num_neurons": 0,
        "output_data_dir": str(paths.output_data),
        "output_dir": str(paths.output),
        "output_intermediate_dir": str(paths.intermediate),
        "resource_config": host.resource_config,
        "user_entry_point": program,
    }
