"""What a launcher told this rank, in its environment: which rank it is, and how the job's model is split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from herringbone_contract.constants import Key, RankVariable
from herringbone_contract.errors import ParallelError
from herringbone_contract.hyperparameters import decode
from herringbone_contract.model_parallel import ResolvedModelParallel

# Set by the entry point from the `mp_parameters` hyperparameter.
_PARAMETERS = f"SM_HP_{Key.MODEL_PARALLEL_PARAMETERS.upper()}"


@dataclass(frozen=True, slots=True)
class Place:
    """Which rank this is, of how many, in the job and on its host."""

    rank: int
    size: int
    local_rank: int
    local_size: int


def place(environ: Mapping[str, str]) -> Place:
    """Return which rank this is.

    >>> place({"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"})
    Place(rank=2, size=4, local_rank=0, local_size=2)

    Raises `ParallelError` for a process that was not launched as a rank.
    """
    names = (RankVariable.RANK, RankVariable.WORLD_SIZE, RankVariable.LOCAL_RANK, RankVariable.LOCAL_WORLD_SIZE)
    return Place(*(int(variable(environ, name)) for name in names))


def model_parallel(environ: Mapping[str, str]) -> ResolvedModelParallel:
    """Return the parameters of the job's `smdistributed.modelparallel`, with their defaults.

    >>> model_parallel({"SM_HP_MP_PARAMETERS": '{"partitions": 2, "microbatches": 4}'}).microbatches
    4

    Raises `ParallelError` where the job has none.
    """
    raw = environ.get(_PARAMETERS)
    if raw is None:
        raise ParallelError(
            f"{_PARAMETERS} is not set: the job's distribution has no smdistributed.modelparallel,"
            " or the script was not started by a launcher"
        )
    parameters = decode({Key.MODEL_PARALLEL_PARAMETERS: raw, Key.MPI_ENABLED: "true"}).model_parallel
    if parameters is None:
        raise ParallelError(f"{_PARAMETERS}={raw} does not enable model parallelism")
    return parameters.resolved()


def variable(environ: Mapping[str, str], name: str) -> str:
    """Return what every rank finds under this name; raises `ParallelError` where it is not there."""
    value = environ.get(name)
    if value is None:
        raise ParallelError(
            f"{name} is not set: this process was not launched as a rank. Run the script through an estimator with"
            " distribution={'smdistributed': {'modelparallel': {...}}, 'mpi': {...}}, or `herringbone run`."
        )
    return value
