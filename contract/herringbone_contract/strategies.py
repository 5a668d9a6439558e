"""The strategies that a `distribution` dict can name: one type for each.

A type holds the user's own values and no more, so that encoding writes the same as AWS's SDK. `enabled` is the
exception: a missing one is False, and both SDKs send it.
"""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from herringbone_contract.model_parallel import ModelParallelParameters, ModelParallelV2Parameters, PositiveInt


class Strategy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, repr_omit_defaults=True):
    """Base of all strategies: a switch that is off by default."""

    enabled: bool = False


class MPI(Strategy, frozen=True, kw_only=True):
    """`mpi`: start the script under mpirun; also how Horovod and model parallelism run.

    `custom_mpi_options` are words for mpirun's command line, as one string.
    """

    processes_per_host: PositiveInt | UnsetType = UNSET
    custom_mpi_options: str | UnsetType = UNSET


Wire = Literal["fp16", "bf16"]


class DataParallel(Strategy, frozen=True, kw_only=True):
    """`smdistributed.dataparallel`: sharded all-reduce, with its servers on the ranks' own hosts or on helper hosts.

    `helpers` names the instance group of helper hosts. `aggregation_frequency` is the number of backward passes whose
    gradients are added up before they are summed over the ranks; with `average_aggregated_gradients` False a step uses
    their sum and not their average. `wire` sends fp32 gradients in 16 bits. `rails` names the network interfaces to
    use. `custom_mpi_options` are words for mpirun's command line, as one string.
    """

    custom_mpi_options: str | UnsetType = UNSET
    helpers: str | UnsetType = UNSET
    aggregation_frequency: PositiveInt | UnsetType = UNSET
    average_aggregated_gradients: bool | UnsetType = UNSET
    wire: Wire | UnsetType = UNSET
    rails: tuple[str, ...] | UnsetType = UNSET


class ModelParallel(Strategy, frozen=True, kw_only=True):
    """`smdistributed.modelparallel`: version 1 under `mpi`, version 2 under `torch_distributed`."""

    parameters: ModelParallelParameters | ModelParallelV2Parameters | UnsetType = UNSET


class SMDistributed(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, repr_omit_defaults=True):
    """`smdistributed`: one of AWS's two libraries, at most."""

    dataparallel: DataParallel | UnsetType = UNSET
    modelparallel: ModelParallel | UnsetType = UNSET


class ParameterServer(Strategy, frozen=True, kw_only=True):
    """`parameter_server`: TensorFlow's or MXNet's asynchronous servers."""


class MultiWorkerMirroredStrategy(Strategy, frozen=True, kw_only=True):
    """`multi_worker_mirrored_strategy`: TensorFlow's synchronous replicas."""


class PyTorchDDP(Strategy, frozen=True, kw_only=True):
    """`pytorchddp`: torch's DistributedDataParallel, started by the data parallel launcher."""

    custom_mpi_options: str | UnsetType = UNSET


class TorchDistributed(Strategy, frozen=True, kw_only=True):
    """`torch_distributed`: torch's own process layout, as torchrun makes it."""


class PyTorchXLA(Strategy, frozen=True, kw_only=True):
    """`pytorchxla`: PyTorch on XLA devices."""
