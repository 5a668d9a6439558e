"""The ways to start ranks, by name.

This module is separate from the strategies, whose import a plain job must not wait for.
"""

from __future__ import annotations

from enum import Enum


class Launcher(str, Enum):
    """The way in which the ranks of a job are started: exactly one per job."""

    # One process per host, which the supervisor starts as it is.
    PLAIN = "plain"
    MPI = "mpi"
    TORCH_DISTRIBUTED = "torch_distributed"
    DATA_PARALLEL = "data_parallel"
    PARAMETER_SERVER = "parameter_server"
    # A host turns `PARAMETER_SERVER` into this when the servers are MXNet's; a distribution does not know that.
    MXNET_PARAMETER_SERVER = "mxnet_parameter_server"
    MULTI_WORKER_MIRRORED = "multi_worker_mirrored"
    PYTORCH_XLA = "pytorch_xla"
