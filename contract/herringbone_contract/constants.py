"""The container contract: every variable, name and limit that both sides share, each spelled once.

The contract is SageMaker's own (docs.aws.amazon.com, "How Amazon SageMaker Provides Training Information"), plus the
few `HERRINGBONE_*` variables from a backend to the supervisor, and from the supervisor to its ranks. This module reads
no file and imports only the standard library, because every rank pays for it at its start.
"""

from __future__ import annotations

import re

# The root of the contract's tree of files; `paths` has its branches.

DEFAULT_BASE = "/opt/ml"
BASE_VARIABLE = "SAGEMAKER_BASE_DIR"
# TensorFlow's `model_dir` in a container: the host's own model folder, or a folder that all hosts share. A backend
# without containers, or without shared folders, replaces them.
MODEL_DIR = f"{DEFAULT_BASE}/model"
SHARED_MODEL_DIR = f"{DEFAULT_BASE}/shared/model"


# Hyperparameters that steer the container; the user's script never sees them.


class Key:
    """Names of the steering hyperparameters, as AWS's SDK writes them."""

    SUBMIT_DIRECTORY = "sagemaker_submit_directory"
    # Our own addition: the code as a file of the host, where the key above is the address that scripts read.
    CODE_ARCHIVE = "sagemaker_code_archive"
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
    # Our own addition: the dict's settings of the data-parallel library, as one JSON object; left out when empty.
    DATA_PARALLEL_PARAMETERS = "sagemaker_distributed_dataparallel_parameters"
    MODEL_PARALLEL_PARAMETERS = "mp_parameters"
    PARAMETER_SERVER_ENABLED = "sagemaker_parameter_server_enabled"
    # Our own addition: the framework of the parameter servers, "mxnet". When it is left out, the image decides, and
    # without a word from the image they are TensorFlow's.
    PARAMETER_SERVER_FRAMEWORK = "sagemaker_parameter_server_framework"
    MULTI_WORKER_MIRRORED_ENABLED = "sagemaker_multi_worker_mirrored_strategy_enabled"
    PYTORCH_DDP_ENABLED = "sagemaker_pytorch_ddp_enabled"
    TORCH_DISTRIBUTED_ENABLED = "sagemaker_torch_distributed_enabled"
    PYTORCH_XLA_ENABLED = "sagemaker_pytorch_xla_multi_worker_enabled"
    # Our own addition: seconds without a sign of life after which the job counts as hanging, 0 for never. Left out:
    # STEPPING_HANG_TIMEOUT_SECONDS for jobs of the model- and the data-parallel library, HANG_TIMEOUT_SECONDS for
    # others of several ranks, never for one rank.
    HANG_TIMEOUT = "sagemaker_hang_timeout"
    # Our own addition: seconds after which a job that uses none of its devices is stopped. Left out: never.
    LOSS_SPIKE_FACTOR = "sagemaker_loss_spike_factor"
    CHECK_REPLICAS_EVERY = "sagemaker_check_replicas_every"
    IDLE_TIMEOUT = "sagemaker_idle_timeout"
    # Our own addition: kind of fault -> answer, see `faults.policies`. Left out, the defaults hold.
    FAULT_POLICIES = "sagemaker_fault_policies"
    # Our own addition: the notice that the platform takes a host away, see `events.drain`; a text, or a list as JSON.
    DRAIN_NOTICE = "sagemaker_drain_notice"
    # Our own addition: true or false, whether hosts are examined before the first step. Left out: if they are several
    # machines.
    INFRA_CHECK = "sagemaker_enable_infra_check"
    # Our own addition: `checkpoint.keeping.Keep` as JSON. Left out, no checkpoint is removed.
    KEEP_CHECKPOINTS = "sagemaker_keep_checkpoints"
    DISTRIBUTION_INSTANCE_GROUPS = "sagemaker_distribution_instance_groups"
    # SageMaker adds this one to every trial of a tuning job; its value is the name of the objective metric.
    TUNING_METRIC = "_tuning_objective_metric"


STEERING_PREFIX = "sagemaker_"


# Limits of the service. They apply everywhere, so that every job that runs here can run in the cloud.

JOB_NAME_PATTERN = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")
MAX_HYPERPARAMETERS = 100
MAX_HYPERPARAMETER_KEY_CHARS = 256
MAX_HYPERPARAMETER_CHARS = 2_500
MAX_ENVIRONMENT_VARIABLES = 100
MAX_ENVIRONMENT_CHARS = 512
MAX_FAILURE_CHARS = 1_024
# `failure.json` is read up to this size: a script can write the file, too.
MAX_RECORD_BYTES = 16 << 20


# Environment variables from a backend to each host's supervisor.


class HostVariable:
    """Variables from a backend to the supervisor of one host."""

    JOB_NAME = "TRAINING_JOB_NAME"
    # The address of the control channel between supervisors: "unix:PATH" for hosts of one machine, "tcp:HOST:PORT"
    # otherwise, and then the first host listens on all its addresses. "tcp::PORT" means the first host, by the name
    # that the platform gives it. Absent on a single host.
    CONTROL = "HERRINGBONE_CONTROL"
    # A path read once for the job's secret (a /dev/fd entry or a file on tmpfs): never argv, never a log.
    KEY_FILE = "HERRINGBONE_KEY_FILE"
    # The key with which the job of `herringbone.remote` signs its result, hexadecimal; or the descriptor that gives it
    # once. For ranks the first one is the descriptor's path.
    REMOTE_KEY = "HERRINGBONE_REMOTE_KEY"
    REMOTE_KEY_FD = "HERRINGBONE_REMOTE_KEY_FD"
    # A file descriptor whose end means that the backend died: the supervisor then stops its ranks.
    LIFELINE = "HERRINGBONE_LIFELINE_FD"
    # In place of KEY_FILE and LIFELINE, when others can read the environment of a host: a file descriptor (0 in a
    # container) that gives one line of JSON, {"environment": {...}, "key": "<hexadecimal>"}. Then it is the lifeline.
    PRIVATE = "HERRINGBONE_PRIVATE_FD"
    # With PRIVATE: "1" for a standby, a host that waits for its line; without a line it ends as if it had never been.
    # "off" in a user's environment: no standby is started.
    STANDBY = "HERRINGBONE_STANDBY"
    # The beginning of the files in which a host keeps its ranks' start messages, from which its standby prepares.
    STARTS = "HERRINGBONE_STARTS"
    # A short-named private folder (0700) for sockets and MPI session files; the backend removes it.
    RUN_FOLDER = "HERRINGBONE_RUN_DIR"
    # The framework of an image, for example "mxnet": jobs of AWS's SDK do not name it.
    FRAMEWORK = "HERRINGBONE_FRAMEWORK"
    # The folder that keeps environments made from requirements.txt between jobs.
    CACHE = "HERRINGBONE_CACHE"
    # That folder's path outside of a container, for messages: the user finds it there.
    CACHE_OUTSIDE = "HERRINGBONE_CACHE_OUTSIDE"
    # Variables for pip alone, as JSON: a proxy among them would redirect the framework's own connections.
    PIP = "HERRINGBONE_PIP"
    # Seconds between SIGTERM and SIGKILL for the ranks.
    STOP_GRACE = "HERRINGBONE_STOP_GRACE"
    # Seconds to wait until all hosts have joined.
    JOIN_TIMEOUT = "HERRINGBONE_JOIN_TIMEOUT"
    # Seconds between two heartbeats on the control channel; three missed ones mean a lost host.
    HEARTBEAT = "HERRINGBONE_HEARTBEAT"
    # "off": this host has no observer, and its ranks send no events.
    OBSERVER = "HERRINGBONE_OBSERVER"
    # "on": ranks of PyTorch scripts report their steps and their peak of memory, to compare them with a prediction.
    COMPARE = "HERRINGBONE_COMPARE"
    # "on": ranks of PyTorch scripts record every optimizer step, so that two runs can be compared.
    FINGERPRINTS = "HERRINGBONE_FINGERPRINTS"
    # A number n: ranks of PyTorch scripts send a checksum of their parameters after every n optimizer steps.
    CHECK_REPLICAS = "HERRINGBONE_CHECK_REPLICAS"
    # The path of the socket at which the host's holder keeps checkpoints in memory; absent without one.
    HOLDER = "HERRINGBONE_CHECKPOINT_HOLDER"
    # After how many steps a training saves into memory, where the user has said so.
    MEMORY_STEPS = "HERRINGBONE_CHECKPOINT_MEMORY_STEPS"


# The file that makes a checkpoint complete, on disk and in memory.
CHECKPOINT_MANIFEST = "manifest.json"
DEFAULT_STOP_GRACE_SECONDS = 110.0
# NCCL's own timeout of a collective operation in torch; gloo waits for half an hour.
STEPPING_HANG_TIMEOUT_SECONDS, HANG_TIMEOUT_SECONDS = 600.0, 1800.0
DEFAULT_JOIN_TIMEOUT_SECONDS = 600.0
DEFAULT_HEARTBEAT_SECONDS = 5.0


class RankVariable:
    """Variables of every rank, under every launcher: torch's own names, set under MPI too."""

    RANK = "RANK"
    WORLD_SIZE = "WORLD_SIZE"
    LOCAL_RANK = "LOCAL_RANK"
    LOCAL_WORLD_SIZE = "LOCAL_WORLD_SIZE"
    GROUP_RANK = "GROUP_RANK"
    MASTER_ADDRESS = "MASTER_ADDR"
    # JSON: the addresses of hosts whose names no name server knows.
    HOST_NAMES = "HERRINGBONE_HOST_NAMES"
    MASTER_PORT = "MASTER_PORT"
    # The number of hosts for which a script gives its batch size, with `keep_global_batch`; fewer may run now.
    FULL_HOSTS = "HERRINGBONE_FULL_HOSTS"
    # The FIFO to which ranks send events (`events.emit`); absent without an observer.
    EVENTS = "HERRINGBONE_EVENTS"


class ReduceVariable:
    """Variables by which the data-parallel library's ranks and its servers on helper hosts find each other.

    Ranks of every distributed launcher have `MEET` and `TOKEN_FILE`; the others are set only when needed.
    """

    # A path (/dev/fd/N here) that gives, once, the secret with which ranks and servers prove themselves to each other,
    # as text without a newline. The reader closes descriptor N.
    TOKEN_FILE = "HERRINGBONE_REDUCE_TOKEN_FILE"  # noqa: S105 - a name, no secret
    # "ADDRESS:PORT" at which rank 0 listens for the other ranks; nobody else uses that port.
    MEET = "HERRINGBONE_REDUCE_MEET"
    # The servers on helper hosts, in their order, as `reduce_servers.encode` writes them; absent without helpers.
    SERVERS = "HERRINGBONE_REDUCE_SERVERS"
    # "fp16" or "bf16": fp32 gradients travel in 16 bits; absent: they travel unchanged.
    WIRE = "HERRINGBONE_REDUCE_WIRE"
    # Names of network interfaces to use, separated by commas; absent: the interface that leads to the other hosts.
    RAILS = "HERRINGBONE_REDUCE_RAILS"
    # The number of backward passes whose gradients are added up before they are summed over the ranks; absent: 1.
    AGGREGATION_FREQUENCY = "HERRINGBONE_AGGREGATION_FREQUENCY"
    # "false": a step uses the sum of the gradients that were added up; absent or "true": their average.
    AVERAGE_AGGREGATED_GRADIENTS = "HERRINGBONE_AVERAGE_AGGREGATED_GRADIENTS"
    # To a server: the name of its host, for messages.
    HOST = "HERRINGBONE_REDUCE_HOST"
    # To a server: the address to listen at; the server chooses the port. Absent: 127.0.0.1.
    LISTEN = "HERRINGBONE_REDUCE_LISTEN"
    # To a server: a descriptor to which it writes one line of JSON, {"port": N}, once it listens.
    READY = "HERRINGBONE_REDUCE_READY_FD"


# The program of a helper host, for `python -m`; SIGTERM ends it with exit code 0.
REDUCE_SERVER_MODULE = "herringbone_parallel.reduce.server"


# Log lines on a host's standard output: "[algo-1:0] text" from rank 0, "[algo-1] text" from the supervisor.

# In front of the text of a line that the next line of the same rank replaces: the state of a progress bar that is not
# over. A rank's other lines never begin with a carriage return.
LIVE_MARK = b"\r"
# In front of a line of a supervisor that is an event (`events.format`): the record separator of RFC 7464. Only behind
# the prefix without a rank: whatever a rank prints begins with its own.
EVENT_MARK = b"\x1e"
# Python refuses to read a number of thousands of digits.
_LINE = re.compile(rb"\[([A-Za-z0-9.-]+)(?::(\d{1,9}))?\] (.*)", re.DOTALL)


def live_path(log: str) -> str:
    """Return the path of the file with the states of progress bars that are not over, next to a host's log.

    >>> live_path("logs/algo-1.log")
    'logs/algo-1.live'
    """
    return f"{log.removesuffix('.log')}.live"


def line_prefix(host: str, rank: int | None = None) -> bytes:
    """Return the text in front of each line of a rank or, without a rank, of the supervisor.

    >>> line_prefix("algo-1", 0)
    b'[algo-1:0] '
    """
    return f"[{host}] ".encode() if rank is None else f"[{host}:{rank}] ".encode()


def split_line(line: bytes) -> tuple[str | None, int | None, bytes]:
    """Split a prefixed line into host, rank and text; an unprefixed line has neither host nor rank.

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
    # The path of the hosts' key is no secret, although its name matches.
    public_names = {name for name in settings if name == HostVariable.KEY_FILE or not _SECRET_NAME.search(name)}
    return {name: value if name in public_names else MASK for name, value in settings.items()}
