"""Read each part of a `distribution` dict, and normalise it.

Two dicts that mean the same job, and that look alike as hyperparameters, become the same value: some strategies are
left out when they are off, and empty MPI options count as missing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, get_args

from msgspec import UNSET, UnsetType

from herringbone_contract.decode import Reader, legal_keys, mapping, read, show
from herringbone_contract.errors import DistributionError
from herringbone_contract.model_parallel.version1 import ModelParallelParameters
from herringbone_contract.model_parallel.version2 import ModelParallelV2Parameters
from herringbone_contract.reduce_servers import are_mixed, is_rail
from herringbone_contract.strategies import (
    MPI,
    DataParallel,
    ModelParallel,
    MultiWorkerMirroredStrategy,
    ParameterServer,
    PyTorchDDP,
    PyTorchXLA,
    SMDistributed,
    Strategy,
    TorchDistributed,
    Wire,
)

StrategyType = TypeVar("StrategyType", bound=Strategy)
AnyParameters = ModelParallelParameters | ModelParallelV2Parameters


def readers(raw: Mapping[str, object]) -> dict[str, Reader]:
    """Return the reader of each key of the dict; some depend on their neighbours in it."""
    # `modelparallel` means version 2 of the library under this launcher, and version 1 otherwise.
    version2 = _is_enabled(raw, "torch_distributed")
    return {
        "smdistributed": partial(_read_smdistributed, version2=version2),
        "mpi": partial(_read_strategy, MPI, nested=_MPI_OPTIONS),
        "parameter_server": partial(_read_strategy, ParameterServer),
        "multi_worker_mirrored_strategy": partial(_read_strategy, MultiWorkerMirroredStrategy),
        "pytorchddp": partial(_read_if_enabled, PyTorchDDP, nested=_MPI_OPTIONS),
        "torch_distributed": partial(_read_if_enabled, TorchDistributed),
        "pytorchxla": partial(_read_strategy, PyTorchXLA),
        "instance_groups": _read_instance_groups,
    }


def chosen(raw: Mapping[str, object]) -> dict[str, object]:
    """Return a stored distribution without the strategies that were never switched on.

    >>> chosen({"smdistributed": {"dataparallel": {}}, "mpi": {"enabled": True}})
    {'mpi': {'enabled': True}}
    """
    members = {name: value for name, value in mapping(raw, "distribution").items() if _is_chosen(name, value)}
    if "smdistributed" in members:
        libraries = mapping(members["smdistributed"], "distribution.smdistributed").items()
        members["smdistributed"] = {name: value for name, value in libraries if _is_chosen(name, value)}
        if not members["smdistributed"]:
            del members["smdistributed"]
    return members


def _is_chosen(name: str, value: object) -> bool:
    # Parameters are no strategies, and `smdistributed` is a group of them.
    return not isinstance(value, Mapping) or "enabled" in value or name == "smdistributed"


def ddp_as_data_parallel(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Rewrite `pytorchddp` as `smdistributed.dataparallel`, unless the dict has both: the rules refuse that."""
    if "pytorchddp" not in raw or "smdistributed" in raw:
        return raw
    # Read it first under its own name, so that a mistake is reported where the user made it.
    _read_strategy(PyTorchDDP, raw["pytorchddp"], "distribution.pytorchddp", _MPI_OPTIONS)
    rest = {key: value for key, value in raw.items() if key != "pytorchddp"}
    return {**rest, "smdistributed": {"dataparallel": raw["pytorchddp"]}}


def _is_enabled(raw: object, strategy: str) -> bool:
    """Look ahead, before anything is checked: the library that `modelparallel` means depends on its neighbours."""
    settings = raw.get(strategy) if isinstance(raw, Mapping) else None
    return isinstance(settings, Mapping) and settings.get("enabled") is True


def _read_strategy(
    target: type[StrategyType], raw: object, path: str, nested: Mapping[str, Reader] | None = None
) -> StrategyType:
    strategy = read(target, raw, path, nested)
    # AWS's SDK takes a missing `enabled` for False, and the job trains on one process per host without a word.
    if "enabled" not in mapping(raw, path):
        raise DistributionError(
            f"{path}: 'enabled' is missing, and without it the strategy is off and does nothing."
            " Add 'enabled': True, or leave the strategy out."
        )
    return strategy


def _read_if_enabled(
    target: type[StrategyType], raw: object, path: str, nested: Mapping[str, Reader] | None = None
) -> StrategyType | UnsetType:
    """Read a strategy that has no hyperparameters when it is off; it then counts as missing."""
    strategy = _read_strategy(target, raw, path, nested)
    return strategy if strategy.enabled else UNSET


def _read_smdistributed(raw: object, path: str, *, version2: bool) -> SMDistributed:
    if raw == {}:
        raise DistributionError(
            f"{path}: names no library, so it would do nothing. Write {{'dataparallel': {{'enabled': True}}}} or"
            " {'modelparallel': {'enabled': True, 'parameters': {...}}} in it, or leave smdistributed out."
        )
    read_parameters: Reader = _read_parameters_of_either
    if _is_enabled(raw, "modelparallel"):
        read_parameters = partial(_read_parameters, version2=version2)
    smdistributed = read(
        SMDistributed,
        raw,
        path,
        {
            "dataparallel": _read_data_parallel,
            "modelparallel": partial(_read_if_enabled, ModelParallel, nested={"parameters": read_parameters}),
        },
    )
    if smdistributed.modelparallel is not UNSET and smdistributed.modelparallel.parameters is UNSET:
        example = "'hybrid_shard_degree': 8" if version2 else "'partitions': 2"
        raise DistributionError(
            f"{path}.modelparallel.parameters: missing or empty, and the job would not know that model parallelism is"
            f" on: nothing else carries it. Give at least one, for example {{{example}}}."
        )
    if smdistributed == SMDistributed():
        # AWS's SDK sends the switch of `dataparallel` when both libraries are off.
        return SMDistributed(dataparallel=DataParallel(enabled=False))
    return smdistributed


def _read_data_parallel(raw: object, path: str) -> DataParallel | UnsetType:
    strategy = _read_if_enabled(DataParallel, raw, path, nested=_DATA_PARALLEL)
    if (
        strategy is not UNSET
        and strategy.average_aggregated_gradients is not UNSET
        and strategy.aggregation_frequency is UNSET
    ):
        raise DistributionError(
            f"{path}.average_aggregated_gradients: applies to gradients that aggregation_frequency adds up, and"
            " aggregation_frequency is missing. Add 'aggregation_frequency': N, or leave this one out."
        )
    return strategy


# Kinds of training that no library here has and that users look for under these names.
_FP8 = "FP8 training is not there: leave it out, and train in 16 bits ('bf16': True, or torch.autocast in the script)"
_ABSENT = {"fp8": _FP8, "fp8_amax_history_len": _FP8, "fp8_amax_compute_algo": _FP8}


def _read_parameters(raw: object, path: str, *, version2: bool) -> AnyParameters | UnsetType:
    raw = _load_parameters(raw, path)
    legal, foreign = legal_keys(ModelParallelParameters), legal_keys(ModelParallelV2Parameters)
    other_library = "version 2 of the library, which runs under 'torch_distributed': {'enabled': True} in place of mpi"
    if version2:
        legal, foreign = foreign, legal
        other_library = "version 1 of the library, which runs under 'mpi': {'enabled': True}, not torch_distributed"
    for key in raw:
        if key in _ABSENT:
            raise DistributionError(f"{path}.{key}: {_ABSENT[key]}.")
        if key in foreign and key not in legal:
            raise DistributionError(f"{path}.{key}: belongs to {other_library}. Legal keys here: {', '.join(legal)}.")
    if not raw:
        return UNSET
    return read(ModelParallelV2Parameters, raw, path) if version2 else read(ModelParallelParameters, raw, path)


def _read_parameters_of_either(raw: object, path: str) -> AnyParameters | UnsetType:
    """Read the parameters of a library that is off: its keys tell the version, because no launcher does."""
    raw = _load_parameters(raw, path)
    only_version2 = set(legal_keys(ModelParallelV2Parameters)) - set(legal_keys(ModelParallelParameters))
    return _read_parameters(raw, path, version2=not only_version2.isdisjoint(raw))


def _load_parameters(raw: object, path: str) -> Mapping[str, Any]:
    """Return the parameters, from a JSON file if `raw` is a path."""
    expected = f"{path}: Expected a string path to an existing modelparallel config, or a dictionary."
    # AWS's SDK takes a path to a JSON file here, too.
    if isinstance(raw, (str, os.PathLike)):
        file = Path(raw)
        try:
            raw = json.loads(file.read_bytes())
        except OSError as error:
            raise DistributionError(f"{expected} Got {str(file)!r}: {error.strerror}.") from error
        except ValueError as error:
            raise DistributionError(f"{path}: Cannot parse {file} as a json file: {error}.") from error
    if not isinstance(raw, Mapping):
        raise DistributionError(f"{expected} Got {show(raw)}.")
    return raw


def _read_mpi_options(raw: object, path: str) -> str | UnsetType:
    """Read "" as missing: AWS's SDK sends it when the user gave no options."""
    if not isinstance(raw, str):
        raise DistributionError(f"{path}: custom_mpi_options must be a string. Got {show(raw)}.")
    return raw or UNSET


_MPI_OPTIONS: dict[str, Reader] = {"custom_mpi_options": _read_mpi_options}


def _read_wire(raw: object, path: str) -> object:
    """Read None as missing: gradients travel unchanged."""
    if raw is not None and raw not in get_args(Wire):
        raise DistributionError(f"{path}: wire must be a value in: {[None, *get_args(Wire)]}. Got {show(raw)}.")
    return UNSET if raw is None else raw


def _read_rails(raw: object, path: str) -> tuple[str, ...]:
    if not isinstance(raw, (list, tuple)) or not raw or not all(isinstance(name, str) for name in raw):
        raise DistributionError(f"{path}: a list of names of network interfaces is expected. Got {show(raw)}.")
    for name in raw:
        if not is_rail(name):
            raise DistributionError(
                f"{path}: {name!r} is no name of a network interface; `ip link` lists them, for example 'eth0'. A"
                " network of libfabric has its provider's name, for example 'fabric:efa'."
            )
    if len(set(raw)) < len(raw):
        raise DistributionError(f"{path}: each interface can be named once. Got {show(list(raw))}.")
    # A sum over both kinds would wait for the slower one.
    if are_mixed(raw):
        raise DistributionError(f"{path}: either all rails go over libfabric or none does. Got {show(list(raw))}.")
    return tuple(raw)


def _read_helpers(raw: object, path: str) -> str:
    name = _group_name(raw)
    if not name:
        raise DistributionError(f"{path}: an instance group, or its name, is expected. Got {show(raw)}.")
    return name


_DATA_PARALLEL: dict[str, Reader] = {
    **_MPI_OPTIONS,
    "helpers": _read_helpers,
    "wire": _read_wire,
    "rails": _read_rails,
}


def _read_instance_groups(raw: object, path: str) -> tuple[str, ...]:
    if not isinstance(raw, (list, tuple)):
        raise DistributionError(f"{path}: a list of instance groups, or of their names, is expected. Got {show(raw)}.")
    names = []
    for group in raw:
        name = _group_name(group)
        if name is None:
            raise DistributionError(f"{path}: an instance group, or its name, is expected. Got {show(group)}.")
        names.append(name)
    return tuple(names)


def _group_name(group: object) -> str | None:
    """Return a group's name: a text, or an object with an `instance_group_name`, such as AWS's InstanceGroup."""
    name = getattr(group, "instance_group_name", group)
    return name if isinstance(name, str) else None
