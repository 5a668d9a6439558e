"""The `distribution` dict, parsed once into frozen, typed objects; all other code reads these.

    Distribution
    +-- smdistributed          SMDistributed
    |   +-- dataparallel       DataParallel
    |   +-- modelparallel      ModelParallel
    |       +-- parameters     ModelParallelParameters, or ModelParallelV2Parameters under torch_distributed
    +-- mpi                    MPI
    +-- parameter_server       ParameterServer
    +-- multi_worker_mirrored_strategy  MultiWorkerMirroredStrategy
    +-- pytorchddp             PyTorchDDP
    +-- torch_distributed      TorchDistributed
    +-- pytorchxla             PyTorchXLA
    +-- instance_groups        names of the groups to train on

docs/distribution.md has the whole grammar in words; `herringbone_contract.hyperparameters` carries it to the hosts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from herringbone_contract import grammar, rules
from herringbone_contract.decode import mapping, read
from herringbone_contract.launcher import Launcher
from herringbone_contract.model_parallel import (
    ModelParallelParameters,
    ModelParallelV2Parameters,
    ResolvedModelParallel,
    given,
)
from herringbone_contract.rules import check_layout, with_instance_groups
from herringbone_contract.strategies import (
    MPI,
    DataParallel,
    ModelParallel,
    MultiWorkerMirroredStrategy,
    ParameterServer,
    PyTorchDDP,
    PyTorchXLA,
    SMDistributed,
    TorchDistributed,
)

__all__ = [
    "parse",
    "check_layout",
    "with_instance_groups",
    "Distribution",
    "Framework",
    "Launcher",
    "SMDistributed",
    "DataParallel",
    "ModelParallel",
    "ModelParallelParameters",
    "ModelParallelV2Parameters",
    "ResolvedModelParallel",
    "MPI",
    "ParameterServer",
    "MultiWorkerMirroredStrategy",
    "PyTorchDDP",
    "TorchDistributed",
    "PyTorchXLA",
]

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
        for name in rules.enabled_strategies(self):
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
        return given(self.smdistributed.modelparallel.parameters, None)

    @property
    def data_parallel(self) -> DataParallel | None:
        """`smdistributed.dataparallel` when it is on, else None."""
        strategy = None if self.smdistributed is UNSET else given(self.smdistributed.dataparallel, None)
        return strategy if strategy is not None and strategy.enabled else None

    @property
    def helpers(self) -> str | None:
        """The instance group of the helper hosts, which have no ranks and sum gradients; None without helpers."""
        return None if self.data_parallel is None else given(self.data_parallel.helpers, None)

    @property
    def processes_per_host(self) -> int | None:
        """Ranks per host, if `mpi` is enabled and gives them."""
        mpi = self._enabled_mpi
        return None if mpi is None else given(mpi.processes_per_host, None)

    @property
    def mpi_options(self) -> str | None:
        """Words for mpirun's command line; None when the ranks start without mpirun.

        `smdistributed.dataparallel` needs no mpirun. It uses one if `mpi` is enabled next to it, or if there are
        options for mpirun.
        """
        mpi, strategies = self._enabled_mpi, (self._enabled_mpi, self.data_parallel, given(self.pytorchddp, None))
        options = [given(strategy.custom_mpi_options, "") for strategy in strategies if strategy is not None]
        return "".join(options) if mpi is not None or any(options) else None

    @property
    def _enabled_mpi(self) -> MPI | None:
        return self.mpi if self.mpi is not UNSET and self.mpi.enabled else None


def parse(raw: Mapping[str, object] | None, *, framework: Framework | None = None) -> Distribution:
    """Return the typed distribution of a user's dict.

    >>> job = parse({"mpi": {"enabled": True, "processes_per_host": 2},
    ...              "smdistributed": {"modelparallel": {"enabled": True, "parameters": {"partitions": 2}}}})
    >>> job.launcher.value, job.model_parallel.resolved().pipeline
    ('mpi', 'interleaved')

    A strategy with `enabled: False` is checked and then counts as not chosen. With `framework="pytorch"`,
    `pytorchddp` becomes `smdistributed.dataparallel`, as in AWS's SDK. The only file that may be read is a path given
    as `parameters`.

    Raises `DistributionError` with the path of the wrong key, the nearest legal one and a remedy.
    """
    if raw is None:
        return Distribution()
    raw = mapping(raw, "distribution")
    if framework == "pytorch":
        raw = grammar.ddp_as_data_parallel(raw)
    distribution = read(Distribution, raw, "distribution", grammar.readers(raw))
    rules.check(distribution, framework)
    return distribution
