"""Reads what the launcher put into a rank's environment: the rank's numbers, and how the job splits its model."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from herringbone_contract.constants import Key, RankVariable
from herringbone_contract.errors import DistributionError, HyperparameterError, ParallelError
from herringbone_contract.hyperparameters import decode
from herringbone_contract.model_parallel.version1 import ModelParallelParameters, ResolvedModelParallel
from herringbone_contract.model_parallel.version2 import ModelParallelV2Parameters, ResolvedModelParallelV2
from herringbone_contract.served import Library, unserved_parameters
from herringbone_contract.strategies import Framework
from herringbone_parallel.core.script_settings import WITHOUT_EFFECT, merge

# The entry point sets it from the `mp_parameters` hyperparameter.
_PARAMETERS = f"SM_HP_{Key.MODEL_PARALLEL_PARAMETERS.upper()}"


@dataclass(frozen=True, slots=True)
class RankInfo:
    """The number of this rank among all ranks of the job, and among those of its host."""

    rank: int
    size: int
    local_rank: int
    local_size: int


def rank_info(environ: Mapping[str, str]) -> RankInfo:
    """Return this rank's numbers.

    >>> rank_info({"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"})
    RankInfo(rank=2, size=4, local_rank=0, local_size=2)

    Raises `ParallelError` for a process that was not launched as a rank.
    """
    names = (RankVariable.RANK, RankVariable.WORLD_SIZE, RankVariable.LOCAL_RANK, RankVariable.LOCAL_WORLD_SIZE)
    return RankInfo(*(int(variable(environ, name)) for name in names))


def model_parallel(
    environ: Mapping[str, str], framework: Framework, script: Mapping[str, Any] | None = None
) -> ResolvedModelParallel:
    """Return the parameters of the job's `smdistributed.modelparallel`, with their defaults.

    >>> model_parallel({"SM_HP_MP_PARAMETERS": '{"partitions": 2, "microbatches": 4}'}, "pytorch").microbatches
    4

    `script` are the settings that the script gives; they count where the job's leave one out, and a warning on rank 0
    names those that differ. Raises `ParallelError` when the job has none, and for parameters that the framework's
    library does not run.
    """
    raw = environ.get(_PARAMETERS)
    if raw is None:
        raise ParallelError(
            "the job's distribution has no smdistributed.modelparallel: add distribution={'smdistributed':"
            " {'modelparallel': {'enabled': True, 'parameters': {'partitions': 2}}}, 'mpi': {'enabled': True,"
            f" 'processes_per_host': 2}}}} to the estimator ({_PARAMETERS} is not set)"
        )
    if script:
        raw = _with_script(raw, script, environ, "smp.init")
    try:
        parameters = decode({Key.MODEL_PARALLEL_PARAMETERS: raw, Key.MPI_ENABLED: "true"}).model_parallel
    except DistributionError as error:
        if not script:
            raise
        raise ParallelError(f"smp.init: the script's settings do not fit the job's: {error}") from error
    if parameters is None:
        raise ParallelError(f"{_PARAMETERS}={raw} does not enable model parallelism")
    _refuse(parameters, framework)
    return parameters.resolved()


def _with_script(
    raw: str,
    script: Mapping[str, Any],
    environ: Mapping[str, str],
    init: str,
    without_effect: frozenset[str] = WITHOUT_EFFECT,
) -> str:
    """Return the job's parameters as JSON, filled up with those that the script gives to `init`."""
    try:
        job = json.loads(raw)
        if not isinstance(job, dict):
            raise ValueError("no JSON object")
    except ValueError as error:
        raise HyperparameterError(f"{_PARAMETERS}={raw[:80]!r}: {error}") from error
    merged = merge(job, script, init, without_effect)
    if merged.contradictions and environ.get(RankVariable.RANK) == "0":
        warnings.warn(
            f"{init}: the job's settings win over the script's: {'; '.join(merged.contradictions)}", stacklevel=4
        )
    try:
        return json.dumps(merged.settings)
    except (TypeError, ValueError) as error:
        raise ParallelError(f"{init}({script!r}): {error}; settings are numbers, words, True and False") from error


def model_parallel_v2(
    environ: Mapping[str, str], config: Mapping[str, object] | None = None
) -> ResolvedModelParallelV2:
    """Return the parameters of version 2 of the job's `smdistributed.modelparallel`, with their defaults.

    >>> model_parallel_v2({"SM_HP_MP_PARAMETERS": '{"tensor_parallel_degree": 2}'}).tensor_parallel_degree
    2

    `config` is the script's own; where the job gives a key too, the job's value counts, and a warning on rank 0 names
    the keys that differ. A job without parameters has the defaults, under which every rank holds a shard. Raises
    `ParallelError` for parameters of version 1, and for those that the library does not run.
    """
    raw = environ.get(_PARAMETERS)
    if config:
        raw = _with_script(raw or "{}", config, environ, "torch.sagemaker.init", frozenset())
    if raw is None:
        return ModelParallelV2Parameters().resolved()
    try:
        distribution = decode({Key.MODEL_PARALLEL_PARAMETERS: raw, Key.TORCH_DISTRIBUTED_ENABLED: "true"})
    except DistributionError as error:
        raise ParallelError(
            f"torch.sagemaker needs the parameters of version 2 of smdistributed.modelparallel: {error}. Scripts that"
            " import smdistributed.modelparallel.torch use version 1"
        ) from error
    parameters = distribution.model_parallel_v2
    if parameters is None:
        raise ParallelError(f"{_PARAMETERS}={raw} does not enable model parallelism")
    _refuse(parameters, "pytorch")
    return parameters.resolved()


def _refuse(parameters: ModelParallelParameters | ModelParallelV2Parameters, framework: Framework) -> None:
    """Raise `ParallelError` for parameters that the library does not run. A plan that knows the framework did so."""
    refusals = unserved_parameters(parameters, Library.HERRINGBONE, framework)
    if refusals:
        reasons = "; ".join(f"{key}: {reason}" for key, reason in refusals.items())
        raise ParallelError(f"not available in this release: {reasons}")


def variable(environ: Mapping[str, str], name: str) -> str:
    """Return a variable that every launched rank has; raise `ParallelError` when it is missing."""
    value = environ.get(name)
    if value is None:
        raise ParallelError(
            f"{name} is not set: this process was not launched as a rank. Run the script through an estimator with"
            " distribution={'smdistributed': {'modelparallel': {...}}, 'mpi': {...}}, or `herringbone run`."
        )
    return value
