"""`sagemaker_training.runner`: the names of ways to start ranks."""

from __future__ import annotations

import enum


class RunnerType(enum.Enum):
    """A way to start ranks. `entry_point.run` starts one process; a job's `distribution` chooses the other ways."""

    MPI = "MPI"
    Process = "Process"
    SMDataParallel = "SMDataParallel"
    PyTorchXLA = "PyTorchXLA"
    TorchDistributed = "TorchDistributed"


ProcessRunnerType = RunnerType.Process
MPIRunnerType = RunnerType.MPI
SMDataParallelRunnerType = RunnerType.SMDataParallel
PyTorchXLARunnerType = RunnerType.PyTorchXLA
TorchDistributedRunnerType = RunnerType.TorchDistributed
