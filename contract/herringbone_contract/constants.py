"""The container contract: every variable, name and limit that both sides share, each spelled once.

The contract is SageMaker's own (docs.aws.amazon.com, "How Amazon SageMaker Provides Training Information"),
plus the few `HERRINGBONE_*` variables that a backend hands to the supervisor and the supervisor to its ranks.
Nothing here touches the disk, and nothing here imports more than the standard library: a rank pays for it at
every start.
"""

from __future__ import annotations

import re

# Where the tree of the contract lies; `paths` has its branches.

DEFAULT_BASE = "/opt/ml"
BASE_VARIABLE = "SAGEMAKER_BASE_DIR"
# TensorFlow's `model_dir` in a container: the host's own model folder, or a folder that all hosts share. A backend
# without containers, or without shared folders, replaces them.
MODEL_DIR = f"{DEFAULT_BASE}/model"
SHARED_MODEL_DIR = f"{DEFAULT_BASE}/shared/model"


# Hyperparameters that steer the container; never shown to the user's script.


class Key:
    """Names of the steering hyperparameters, as AWS's SDK writes them."""

    SUBMIT_DIRECTORY = "sagemaker_submit_directory"
    PROGRAM = "sagemaker_program"
    LOG_LEVEL = "sagemaker_container_log_level"
    JOB_NAME = "sagemaker_job_name"
    REGION = "sagemaker_region"
    INSTANCE_TYPE = "sagemaker_instance_type"
    MPI_ENABLED = "sagemaker_mpi_enabled"
    MPI_PROCESSES_PER_HOST = "sagemaker_mpi_num_of_processes_per_host"
    MPI_CUSTOM_OPTIONS = "sagemaker_mpi_custom_mpi_options"
    DATA_PARALLEL_ENABLED = "sagemaker_distributed_dataparallel_enabled"
    DATA_PARALLEL_CUSTOM_OPTIONS = "sagemaker_distributed_dataparallel_custom_mpi_options"
    # Ours, beside AWS's: what the dict says of the data-parallel library, as one JSON object; left out when empty.
    DATA_PARALLEL_PARAMETERS = "sagemaker_distributed_dataparallel_parameters"
    MODEL_PARALLEL_PARAMETERS = "mp_parameters"
    PARAMETER_SERVER_ENABLED = "sagemaker_parameter_server_enabled"
    # Ours, beside AWS's: whose parameter servers they are, "mxnet"; left out, the image says it, or they are
    # TensorFlow's.
    PARAMETER_SERVER_FRAMEWORK = "sagemaker_parameter_server_framework"
    MULTI_WORKER_MIRRORED_ENABLED = "sagemaker_multi_worker_mirrored_strategy_enabled"
    PYTORCH_DDP_ENABLED = "sagemaker_pytorch_ddp_enabled"
    TORCH_DISTRIBUTED_ENABLED = "sagemaker_torch_distributed_enabled"
    PYTORCH_XLA_ENABLED = "sagemaker_pytorch_xla_multi_worker_enabled"
    DISTRIBUTION_INSTANCE_GROUPS = "sagemaker_distribution_instance_groups"


STEERING_PREFIX = "sagemaker_"


# Limits of the service; the same everywhere, so that a job that runs here can go to the cloud.

JOB_NAME_PATTERN = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")
MAX_HYPERPARAMETERS = 100
MAX_HYPERPARAMETER_KEY_CHARS = 256
MAX_HYPERPARAMETER_CHARS = 2_500
MAX_ENVIRONMENT_VARIABLES = 100
MAX_ENVIRONMENT_CHARS = 512
MAX_FAILURE_CHARS = 1_024


# Environment that a backend hands to each host's supervisor.


class HostVariable:
    """Variables from a backend to the supervisor of one host."""

    JOB_NAME = "TRAINING_JOB_NAME"
    # Where the control channel between supervisors lives: "unix:PATH" for hosts of one machine, "tcp:HOST:PORT" for
    # others: the first host listens on all its addresses. "tcp::PORT" is the first host by the name that the platform
    # gives it. Absent on a single host.
    CONTROL = "HERRINGBONE_CONTROL"
    # A path read once for the job's secret (a /dev/fd entry or a file on tmpfs): never argv, never a log.
    KEY_FILE = "HERRINGBONE_KEY_FILE"
    # A file descriptor whose end-of-file says that the backend died: the supervisor then stops its ranks.
    LIFELINE = "HERRINGBONE_LIFELINE_FD"
    # In place of KEY_FILE and LIFELINE, where others can read the environment of a host: a file descriptor (0 in a
    # container) that gives one line of JSON, {"environment": {...}, "key": "<hexadecimal>"}, and then is the lifeline.
    PRIVATE = "HERRINGBONE_PRIVATE_FD"
    # A short-named private folder (0700) for sockets and MPI session files; the backend removes it.
    RUN_FOLDER = "HERRINGBONE_RUN_DIR"
    # What an image is made for, "mxnet" say: jobs of AWS's SDK do not say it.
    FRAMEWORK = "HERRINGBONE_FRAMEWORK"
    # Where environments made from requirements.txt are kept between jobs.
    CACHE = "HERRINGBONE_CACHE"
    # Seconds between SIGTERM and SIGKILL for the ranks.
    STOP_GRACE = "HERRINGBONE_STOP_GRACE"
    # Seconds to wait for all hosts to come.
    JOIN_TIMEOUT = "HERRINGBONE_JOIN_TIMEOUT"
    # Seconds between two signs of life on the control channel; three missed ones mean a lost host.
    HEARTBEAT = "HERRINGBONE_HEARTBEAT"


DEFAULT_STOP_GRACE_SECONDS = 110.0
DEFAULT_JOIN_TIMEOUT_SECONDS = 600.0
DEFAULT_HEARTBEAT_SECONDS = 5.0


class RankVariable:
    """Variables that every rank finds, whatever started it: torch's own names, set under MPI too."""

    RANK = "RANK"
    WORLD_SIZE = "WORLD_SIZE"
    LOCAL_RANK = "LOCAL_RANK"
    LOCAL_WORLD_SIZE = "LOCAL_WORLD_SIZE"
    GROUP_RANK = "GROUP_RANK"
    MASTER_ADDRESS = "MASTER_ADDR"
    MASTER_PORT = "MASTER_PORT"


class ReduceVariable:
    """Variables by which the data-parallel library's ranks and its servers on helper hosts find each other.

    Ranks of every distributed launcher have `MEET` and `TOKEN_FILE`; the rest only where there is something to say.
    """

    # A path (/dev/fd/N here) that gives, once, the secret with which ranks and servers prove to each other who they
    # are, as text without a line's end. Descriptor N is for whoever reads it to close.
    TOKEN_FILE = "HERRINGBONE_REDUCE_TOKEN_FILE"  # noqa: S105 - a name, no secret
    # "ADDRESS:PORT" where rank 0 listens and the other ranks come to; nobody else uses that port.
    MEET = "HERRINGBONE_REDUCE_MEET"
    # The servers on helper hosts, in their order, as `reduce_servers.encode` writes them; absent without helpers.
    SERVERS = "HERRINGBONE_REDUCE_SERVERS"
    # "fp16" or "bf16": fp32 gradients travel in 16 bits; absent: as they are.
    WIRE = "HERRINGBONE_REDUCE_WIRE"
    # Network interfaces to use, by name, with commas between; absent: the one that leads to the other hosts.
    RAILS = "HERRINGBONE_REDUCE_RAILS"
    # How many backwards add up their gradients before they are summed over the ranks; absent: 1.
    AGGREGATION_FREQUENCY = "HERRINGBONE_AGGREGATION_FREQUENCY"
    # "false": a step is made by the sum of what they added up; absent or "true": by its average.
    AVERAGE_AGGREGATED_GRADIENTS = "HERRINGBONE_AVERAGE_AGGREGATED_GRADIENTS"
    # To a server: the name of its host, for messages.
    HOST = "HERRINGBONE_REDUCE_HOST"
    # To a server: the address to listen at, at a port of its own choice; absent: 127.0.0.1.
    LISTEN = "HERRINGBONE_REDUCE_LISTEN"
    # To a server: a descriptor for one line of JSON, {"port": N}, once it listens.
    READY = "HERRINGBONE_REDUCE_READY_FD"


# What a helper host runs, as `python -m` this; SIGTERM ends it with exit code 0.
REDUCE_SERVER_MODULE = "herringbone_parallel.reduce.server"


# Log lines on a host's standard output: "[algo-1:0] text" from rank 0, "[algo-1] text" from the supervisor.

_LINE = re.compile(rb"\[([A-Za-z0-9.-]+)(?::(\d+))?\] (.*)", re.DOTALL)


def line_prefix(host: str, rank: int | None = None) -> bytes:
    """Return what precedes each line that a rank (or, without one, the supervisor) writes.

    >>> line_prefix("algo-1", 0)
    b'[algo-1:0] '
    """
    return f"[{host}] ".encode() if rank is None else f"[{host}:{rank}] ".encode()


def split_line(line: bytes) -> tuple[str | None, int | None, bytes]:
    """Take a prefixed line apart into host, rank and text; an unprefixed line has neither.

    >>> split_line(b"[algo-1:0]   loss 0.5")
    ('algo-1', 0, b'  loss 0.5')
    """
    match = _LINE.fullmatch(line)
    if match is None:
        return None, None, line
    host, rank, text = match.groups()
    return host.decode(), None if rank is None else int(rank), text


# Secrets by name: their values are masked wherever a setting is printed or stored.

_SECRET_NAME = re.compile(r"SECRET|TOKEN|PASSWORD|PASSWD|CREDENTIAL|KEY", re.IGNORECASE)
MASK = "******"


def masked(settings: dict[str, str]) -> dict[str, str]:
    """Return the settings with the value of each secret-sounding name replaced.

    >>> masked({"WANDB_API_KEY": "abc", "EPOCHS": "3"})
    {'WANDB_API_KEY': '******', 'EPOCHS': '3'}
    """
    # Where the hosts' key is, is no secret.
    shown = {name for name in settings if name == HostVariable.KEY_FILE or not _SECRET_NAME.search(name)}
    return {name: value if name in shown else MASK for name, value in settings.items()}
