"""The environment of a measured script: rank 0 of data-parallel ranks, with no layer split and nothing sharded.

Pure functions of the job's environment.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from herringbone_contract.constants import RankVariable
from herringbone_contract.errors import ParallelError
from herringbone_contract.prediction.question import WHOLE_MODEL

PARAMETERS = "SM_HP_MP_PARAMETERS"
# Each job of version 1 has one of these.
_VERSION_1 = {"partitions", "pipeline_parallel_degree", "microbatches"}
MEASURING = "HERRINGBONE_MEASURING"
_ACCELERATE = "HERRINGBONE_ACCELERATE"


def measured_environment(environ: Mapping[str, str], *, ranks: int) -> dict[str, str | None]:
    """Return the variables to set for a measured script, None for those to remove.

    >>> measured_environment({}, ranks=4)["WORLD_SIZE"]
    '4'

    Raises `ParallelError` for model-parallel parameters that are no JSON object.
    """
    local = min(int(environ.get(RankVariable.LOCAL_WORLD_SIZE, ranks)), ranks)
    changes: dict[str, str | None] = {
        MEASURING: "1",
        RankVariable.RANK: "0",
        RankVariable.LOCAL_RANK: "0",
        RankVariable.GROUP_RANK: "0",
        RankVariable.WORLD_SIZE: str(ranks),
        RankVariable.LOCAL_WORLD_SIZE: str(max(local, 1)),
        # Nobody listens there: the process group of a measurement has one process.
        RankVariable.MASTER_ADDRESS: environ.get(RankVariable.MASTER_ADDRESS, "127.0.0.1"),
        RankVariable.MASTER_PORT: environ.get(RankVariable.MASTER_PORT, "29500"),
    }
    # accelerate would shard the model too, by these variables that the launcher has set.
    for name in filter(None, environ.get(_ACCELERATE, "").split(",")):
        changes[name] = None
    changes[_ACCELERATE] = None
    if PARAMETERS in environ:
        changes[PARAMETERS] = _whole(environ[PARAMETERS], ranks)
    return changes


def _whole(text: str, ranks: int) -> str:
    try:
        parameters = json.loads(text)
    except ValueError as error:
        raise ParallelError(f"{PARAMETERS}={text[:80]!r} is no JSON: {error}") from error
    if not isinstance(parameters, dict):
        raise ParallelError(f"{PARAMETERS}={text[:80]!r} is no JSON object")
    kept = {name: value for name, value in parameters.items() if name not in WHOLE_MODEL}
    known = {name: WHOLE_MODEL[name] for name in parameters if WHOLE_MODEL.get(name) is not None}
    if "partitions" in parameters or "pipeline_parallel_degree" in parameters:
        # Several ranks of one partition are replicas.
        kept["ddp"] = ranks > 1 or kept.get("ddp", False)
    return json.dumps({**kept, **known})


def is_version_1(environ: Mapping[str, str]) -> bool:
    """Say whether the job's model-parallel parameters are those of version 1.

    >>> is_version_1({"SM_HP_MP_PARAMETERS": '{"partitions": 2}'})
    True
    """
    return bool(_VERSION_1 & set(json.loads(environ.get(PARAMETERS, "{}"))))
