"""The `distribution` dict: parsed once into frozen, typed objects, and read everywhere else through these.

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

The whole grammar in words: docs/distribution.md. How it travels: `herringbone_spec.hyperparameters`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from msgspec import UNSET, Struct, UnsetType

from herringbone_spec import rules
from herringbone_spec.errors import DistributionError
from herringbone_spec.model_parallel import (
    ModelParallelParameters,
    ModelParallelV2Parameters,
    ResolvedModelParallel,
    given,
)
from herringbone_spec.reading import Reader, legal_keys, mapping, read, show
from herringbone_spec.rules import check_layout, with_instance_groups
from herringbone_spec.strategies import (
    MPI,
    DataParallel,
    Launcher,
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

Strategy = TypeVar(
    "Strategy",
    DataParallel,
    ModelParallel,
    MPI,
    ParameterServer,
    MultiWorkerMirroredStrategy,
    PyTorchDDP,
    TorchDistributed,
    PyTorchXLA,
)

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
    """How a job's ranks are laid out and started; made by `parse`, which checks what the types alone cannot."""

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
        """What starts the ranks; `PLAIN` when no strategy is enabled."""
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
    def processes_per_host(self) -> int | None:
        """Ranks per host, where `mpi` is enabled and says so."""
        if self.mpi is UNSET or not self.mpi.enabled:
            return None
        return given(self.mpi.processes_per_host, None)


def parse(raw: Mapping[str, object] | None, *, framework: Framework | None = None) -> Distribution:
    """Return the typed distribution of a user's dict.

    >>> job = parse({"mpi": {"enabled": True, "processes_per_host": 2},
    ...              "smdistributed": {"modelparallel": {"enabled": True, "parameters": {"partitions": 2}}}})
    >>> job.launcher.value, job.model_parallel.resolved().pipeline
    ('mpi', 'interleaved')

    A strategy with `enabled: False` is checked and then counts as not chosen. With `framework="pytorch"`,
    `pytorchddp` becomes `smdistributed.dataparallel`, as in AWS's SDK. No network; the one file that may be read is
    `parameters` given as a path.

    Raises `DistributionError` naming the path of the wrong key, its nearest legal neighbour and the way out.
    """
    if raw is None:
        return Distribution()
    if framework == "pytorch":
        raw = _ddp_as_data_parallel(mapping(raw, "distribution"))
    version2 = _is_enabled(raw, "torch_distributed")
    distribution = read(
        Distribution,
        raw,
        "distribution",
        {
            "smdistributed": partial(_read_smdistributed, version2=version2),
            "mpi": partial(_read_strategy, MPI, nested=_MPI_OPTIONS),
            "parameter_server": partial(_read_strategy, ParameterServer),
            "multi_worker_mirrored_strategy": partial(_read_strategy, MultiWorkerMirroredStrategy),
            "pytorchddp": partial(_read_if_enabled, PyTorchDDP, nested=_MPI_OPTIONS),
            "torch_distributed": partial(_read_if_enabled, TorchDistributed),
            "pytorchxla": partial(_read_strategy, PyTorchXLA),
            "instance_groups": _read_instance_groups,
        },
    )
    rules.check(distribution, framework)
    return distribution


def _ddp_as_data_parallel(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Rewrite `pytorchddp`, unless `smdistributed` is there too: then the rules say that one must go."""
    if "pytorchddp" not in raw or "smdistributed" in raw:
        return raw
    read(PyTorchDDP, raw["pytorchddp"], "distribution.pytorchddp")
    rest = {key: value for key, value in raw.items() if key != "pytorchddp"}
    return {**rest, "smdistributed": {"dataparallel": raw["pytorchddp"]}}


def _is_enabled(raw: object, strategy: str) -> bool:
    """Look ahead, before anything is checked: which library `modelparallel` means depends on its neighbour."""
    chosen = raw.get(strategy) if isinstance(raw, Mapping) else None
    return isinstance(chosen, Mapping) and chosen.get("enabled") is True


def _read_strategy(
    target: type[Strategy], raw: object, path: str, nested: Mapping[str, Reader] | None = None
) -> Strategy:
    strategy = read(target, raw, path, nested)
    if raw and "enabled" not in mapping(raw, path):
        raise DistributionError(
            f"{path}: 'enabled' is missing, and without it the strategy is off and its other keys do nothing."
            " Add 'enabled': True."
        )
    return strategy


def _read_if_enabled(
    target: type[Strategy], raw: object, path: str, nested: Mapping[str, Reader] | None = None
) -> Strategy | UnsetType:
    """Read a strategy of which nothing travels when it is off."""
    strategy = _read_strategy(target, raw, path, nested)
    return strategy if strategy.enabled else UNSET


def _read_smdistributed(raw: object, path: str, *, version2: bool) -> SMDistributed:
    parameters = partial(_read_parameters, version2=version2)
    smdistributed = read(
        SMDistributed,
        raw,
        path,
        {
            "dataparallel": partial(_read_if_enabled, DataParallel, nested=_MPI_OPTIONS),
            "modelparallel": partial(_read_if_enabled, ModelParallel, nested={"parameters": parameters}),
        },
    )
    if smdistributed.modelparallel is not UNSET and smdistributed.modelparallel.parameters is UNSET:
        example = "'hybrid_shard_degree': 8" if version2 else "'partitions': 2"
        raise DistributionError(
            f"{path}.modelparallel.parameters: missing or empty, and the job would not know that model parallelism is"
            f" on: nothing else carries it. Give at least one, for example {{{example}}}."
        )
    return smdistributed


def _read_parameters(
    raw: object, path: str, *, version2: bool
) -> ModelParallelParameters | ModelParallelV2Parameters | UnsetType:
    raw = _load_parameters(raw, path) if isinstance(raw, (str, os.PathLike)) else raw
    if not isinstance(raw, Mapping):
        raise DistributionError(
            f"{path}: Expected a string path to an existing modelparallel config, or a dictionary. Got {show(raw)}."
        )
    if version2:
        _refuse_keys_of(
            ModelParallelParameters,
            raw,
            path,
            legal=legal_keys(ModelParallelV2Parameters),
            runs="version 1 of the library, which runs under 'mpi': {'enabled': True} in place of torch_distributed",
        )
        return read(ModelParallelV2Parameters, raw, path) if raw else UNSET
    _refuse_keys_of(
        ModelParallelV2Parameters,
        raw,
        path,
        legal=legal_keys(ModelParallelParameters),
        runs="version 2 of the library, which runs under 'torch_distributed': {'enabled': True} in place of mpi",
    )
    return read(ModelParallelParameters, raw, path) if raw else UNSET


def _refuse_keys_of(
    other: type[Struct], raw: Mapping[str, object], path: str, *, legal: tuple[str, ...], runs: str
) -> None:
    for key in raw:
        if key in legal_keys(other) and key not in legal:
            raise DistributionError(f"{path}.{key}: belongs to {runs}. Legal keys here: {', '.join(legal)}.")


def _load_parameters(file: str | os.PathLike[str], path: str) -> object:
    try:
        text = Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise DistributionError(
            f"{path}: Expected a string path to an existing modelparallel config, or a dictionary."
            f" Got {str(file)!r}: {error.strerror}."
        ) from error
    try:
        return json.loads(text)
    except ValueError as error:
        raise DistributionError(f"{path}: Cannot parse {file} as a json file: {error}.") from error


def _read_mpi_options(raw: object, path: str) -> str | UnsetType:
    """Read "" as not given: it is what AWS's SDK sends when no options were given."""
    if not isinstance(raw, str):
        raise DistributionError(f"{path}: custom_mpi_options must be a string. Got {show(raw)}.")
    return raw or UNSET


_MPI_OPTIONS: dict[str, Reader] = {"custom_mpi_options": _read_mpi_options}


def _read_instance_groups(raw: object, path: str) -> tuple[str, ...]:
    """Read names, or objects that have one as `instance_group_name` (AWS's InstanceGroup does)."""
    if not isinstance(raw, (list, tuple)):
        raise DistributionError(f"{path}: a list of instance groups, or of their names, is expected. Got {show(raw)}.")
    names = []
    for group in raw:
        name = getattr(group, "instance_group_name", group)
        if not isinstance(name, str):
            raise DistributionError(f"{path}: an instance group, or its name, is expected. Got {show(name)}.")
        names.append(name)
    return tuple(names)
