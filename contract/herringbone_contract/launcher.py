"""How ranks are started, by name; apart from the strategies, for who has no strategy to read and whose user waits."""

from __future__ import annotations

from enum import Enum


class Launcher(str, Enum):
    """How the ranks of a job are started: exactly one per job."""

    PLAIN = "plain"
    MPI = "mpi"
    TORCH_DISTRIBUTED = "torch_distributed"
    DATA_PARALLEL = "data_parallel"
    PARAMETER_SERVER = "parameter_server"
    # What a host makes of `PARAMETER_SERVER` where the servers are MXNet's: a distribution does not know.
    MXNET_PARAMETER_SERVER = "mxnet_parameter_server"
    MULTI_WORKER_MIRRORED = "multi_worker_mirrored"
    PYTORCH_XLA = "pytorch_xla"
