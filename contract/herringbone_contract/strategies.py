"""The types of a `distribution` dict: one for each strategy that it can name, and one for the dict itself.

A type holds the user's own values and no more, so that encoding writes the same as AWS's SDK.
"""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from herringbone_contract.launcher import Launcher
from herringbone_contract.model_parallel.values import PositiveInt, value_or
from herringbone_contract.model_parallel.version1 import ModelParallelParameters
from herringbone_contract.model_parallel.version2 import ModelParallelV2Parameters


class Strategy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, repr_omit_defaults=True):
    """Base of all strategies: a switch, which a user's dict must have."""

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


Framework = Literal["pytorch", "tensorflow", "huggingface", "mxnet"]

_LAUNCHERS = {
    "smdistributed.dataparallel": Launcher.DATA_PARALLEL,
    "pytorchddp": Launcher.DATA_PARALLEL,
    "mpi": Launcher.MPI,
    "torch_distributed": Launcher.TORCH_DISTRIBUTED,
    "parameter_server": Launcher.PARAMETER_SERVER,
    "multi_worker_mirrored_strategy": Launcher.MULTI_WORKER_MIRRORED,
    "pytorchxla": Launcher.PYTORCH_XLA,
}


class Distribution(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, repr_omit_defaults=True):
    """The way in which a job's ranks are laid out and started.

    `parse` makes it, and checks the rules that types cannot express.
    """

    smdistributed: SMDistributed | UnsetType = UNSET
    mpi: MPI | UnsetType = UNSET
    parameter_server: ParameterServer | UnsetType = UNSET
    multi_worker_mirrored_strategy: MultiWorkerMirroredStrategy | UnsetType = UNSET
    pytorchddp: PyTorchDDP | UnsetType = UNSET
    torch_distributed: TorchDistributed | UnsetType = UNSET
    pytorchxla: PyTorchXLA | UnsetType = UNSET
    instance_groups: tuple[str, ...] | UnsetType = UNSET

    @property
    def launcher(self) -> Launcher:
        """The launcher of the ranks; `PLAIN` when no strategy is enabled."""
        for name in enabled_strategies(self):
            if name in _LAUNCHERS:
                return _LAUNCHERS[name]
        return Launcher.PLAIN

    @property
    def model_parallel(self) -> ModelParallelParameters | None:
        """Version 1's parameters when model parallelism is on, else None."""
        parameters = self._model_parallel_parameters
        return parameters if isinstance(parameters, ModelParallelParameters) else None

    @property
    def model_parallel_v2(self) -> ModelParallelV2Parameters | None:
        """Version 2's parameters when model parallelism is on under `torch_distributed`, else None."""
        parameters = self._model_parallel_parameters
        return parameters if isinstance(parameters, ModelParallelV2Parameters) else None

    @property
    def _model_parallel_parameters(self) -> ModelParallelParameters | ModelParallelV2Parameters | None:
        if self.smdistributed is UNSET or self.smdistributed.modelparallel is UNSET:
            return None
        return value_or(self.smdistributed.modelparallel.parameters, None)

    @property
    def data_parallel(self) -> DataParallel | None:
        """`smdistributed.dataparallel` when it is on, else None."""
        strategy = None if self.smdistributed is UNSET else value_or(self.smdistributed.dataparallel, None)
        return strategy if strategy is not None and strategy.enabled else None

    @property
    def helpers(self) -> str | None:
        """The instance group of the helper hosts, which have no ranks and sum gradients; None without helpers."""
        return None if self.data_parallel is None else value_or(self.data_parallel.helpers, None)

    @property
    def processes_per_host(self) -> int | None:
        """Ranks per host, if `mpi` is enabled and gives them."""
        mpi = self._enabled_mpi
        return None if mpi is None else value_or(mpi.processes_per_host, None)

    @property
    def mpi_options(self) -> str | None:
        """Words for mpirun's command line; None when the ranks start without mpirun.

        `smdistributed.dataparallel` needs no mpirun. It uses one if `mpi` is enabled next to it, or if there are
        options for mpirun.
        """
        mpi, strategies = self._enabled_mpi, (self._enabled_mpi, self.data_parallel, value_or(self.pytorchddp, None))
        options = [value_or(strategy.custom_mpi_options, "") for strategy in strategies if strategy is not None]
        return "".join(options) if mpi is not None or any(options) else None

    @property
    def _enabled_mpi(self) -> MPI | None:
        return self.mpi if self.mpi is not UNSET and self.mpi.enabled else None


def enabled_strategies(distribution: Distribution) -> list[str]:
    """Return the dotted names of the strategies that are switched on, in the order of the types."""
    smdistributed = value_or(distribution.smdistributed, None)
    strategies = {
        "smdistributed.dataparallel": UNSET if smdistributed is None else smdistributed.dataparallel,
        "smdistributed.modelparallel": UNSET if smdistributed is None else smdistributed.modelparallel,
        "mpi": distribution.mpi,
        "parameter_server": distribution.parameter_server,
        "multi_worker_mirrored_strategy": distribution.multi_worker_mirrored_strategy,
        "pytorchddp": distribution.pytorchddp,
        "torch_distributed": distribution.torch_distributed,
        "pytorchxla": distribution.pytorchxla,
    }
    return [name for name, strategy in strategies.items() if strategy is not UNSET and strategy.enabled]
