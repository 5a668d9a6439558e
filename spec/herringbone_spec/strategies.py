"""The strategies that a `distribution` dict can name, one type each, and the way each one starts its ranks.

Every type holds what the user gave and no more, so that encoding writes what AWS's SDK would write. `enabled` is the
exception: not given, it is False, and both SDKs send it.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from herringbone_spec.model_parallel import ModelParallelParameters, ModelParallelV2Parameters

PositiveInt = Annotated[int, Meta(ge=1)]


class Launcher(str, Enum):
    """How the ranks of a job are started: exactly one per job."""

    PLAIN = "plain"
    MPI = "mpi"
    TORCH_DISTRIBUTED = "torch_distributed"
    DATA_PARALLEL = "data_parallel"
    PARAMETER_SERVER = "parameter_server"
    MULTI_WORKER_MIRRORED = "multi_worker_mirrored"
    PYTORCH_XLA = "pytorch_xla"


class MPI(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, repr_omit_defaults=True):
    """`mpi`: start the script under mpirun; also how Horovod and model parallelism run.

    `custom_mpi_options` are words for mpirun's command line, as one string.
    """

    enabled: bool = False
    processes_per_host: PositiveInt | UnsetType = UNSET
    custom_mpi_options: str | UnsetType = UNSET


class DataParallel(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, repr_omit_defaults=True):
    """`smdistributed.dataparallel`: sharded all-reduce with its own launcher."""

    enabled: bool = False
    custom_mpi_options: str | UnsetType = UNSET


class ModelParallel(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, repr_omit_defaults=True):
    """`smdistributed.modelparallel`: version 1 under `mpi`, version 2 under `torch_distributed`."""

    enabled: bool = False
    parameters: ModelParallelParameters | ModelParallelV2Parameters | UnsetType = UNSET


class SMDistributed(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, repr_omit_defaults=True):
    """`smdistributed`: one of AWS's two libraries, at most."""

    dataparallel: DataParallel | UnsetType = UNSET
    modelparallel: ModelParallel | UnsetType = UNSET


class ParameterServer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, repr_omit_defaults=True):
    """`parameter_server`: TensorFlow's or MXNet's asynchronous servers."""

    enabled: bool = False


class MultiWorkerMirroredStrategy(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, repr_omit_defaults=True
):
    """`multi_worker_mirrored_strategy`: TensorFlow's synchronous replicas."""

    enabled: bool = False


class PyTorchDDP(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, repr_omit_defaults=True):
    """`pytorchddp`: torch's DistributedDataParallel, started by the data parallel launcher."""

    enabled: bool = False
    custom_mpi_options: str | UnsetType = UNSET


class TorchDistributed(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, repr_omit_defaults=True):
    """`torch_distributed`: torch's own process layout, as torchrun makes it."""

    enabled: bool = False


class PyTorchXLA(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, repr_omit_defaults=True):
    """`pytorchxla`: PyTorch on XLA devices."""

    enabled: bool = False
