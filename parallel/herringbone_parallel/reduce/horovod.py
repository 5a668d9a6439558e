"""Horovod's names that are the same for all frameworks: ranks, operations, compression, objects."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, NoReturn

from herringbone_contract.errors import ParallelError
from herringbone_parallel.reduce import objects, session
from herringbone_parallel.reduce.collectives import barrier as _barrier
from herringbone_parallel.reduce.engine import Engine

_engine: Engine | None = None
# Names of Horovod that nothing here answers, and what to use instead.
_REFUSED = {
    "join": "give all ranks the same number of batches, as with dataset.repeat() and a fixed number of steps",
    "Adasum": "use hvd.Average or hvd.Sum, and for large batches LARS or LAMB",
    "elastic": "save checkpoints in SM_CHECKPOINT_DIR; a job that is retried continues from them",
    "SyncBatchNormalization": "use the framework's BatchNormalization; each rank normalizes with its own batch",
    "SyncBatchNorm": "use torch.nn.SyncBatchNorm with torch.distributed",
    "start_timeline": "use the timeline and the profiler of the job",
    "stop_timeline": "use the timeline and the profiler of the job",
    **dict.fromkeys(("ProcessSet", "global_process_set", "add_process_set", "remove_process_set"), "use all ranks"),
    **dict.fromkeys(("alltoall", "reducescatter", "grouped_reducescatter"), "use hvd.allreduce or hvd.allgather"),
    **dict.fromkeys(("PartialDistributedGradientTape", "PartialDistributedOptimizer"), "distribute all variables"),
}


class RefusedNameError(ParallelError, AttributeError):
    """A name of Horovod that is absent here; `hasattr` answers False.

    To fix: Use what the error names instead, or run the script with Horovod itself.
    """


def refusing(package: str) -> Callable[[str], NoReturn]:
    """Return the `__getattr__` of a module that stands for a package of Horovod's.

    __getattr__ = refusing("horovod.torch")
    """

    def refuse(name: str) -> NoReturn:
        advice = _REFUSED.get(name, "use one of " + package + ".__all__")
        raise RefusedNameError(f"hvd.{name}: there is no {name!r} in Herringbone's {package}: {advice}")

    return refuse


def init() -> None:
    """Join the other ranks of the job; a second call does nothing."""
    global _engine
    if _engine is None:
        _engine = session.enter()


def shutdown() -> None:
    """Leave the other ranks; runs by itself at the end of the script."""
    global _engine
    if _engine is not None:
        _engine = None
        session.leave()


def is_initialized() -> bool:
    """Return True between `init` and `shutdown`."""
    return _engine is not None


def engine() -> Engine:
    """Return this rank's engine; raises `ParallelError` before `init`."""
    if _engine is None:
        raise ParallelError("hvd.init() has not been called; call it first in the script")
    return _engine


def size() -> int:
    """Return the number of ranks."""
    return engine().size


def rank() -> int:
    """Return this process's number among all ranks."""
    return engine().rank


def local_size() -> int:
    """Return the number of ranks on this host."""
    return engine().local_size


def local_rank() -> int:
    """Return this process's number among the ranks of its host: the GPU to use."""
    return engine().local_rank


class Op(Enum):
    """The operations that combine the ranks' values."""

    AVERAGE = "average"
    SUM = "sum"
    MIN = "min"
    MAX = "max"


Average, Sum, Min, Max = Op.AVERAGE, Op.SUM, Op.MIN, Op.MAX


def chosen_op(average: bool | None, op: Op | None) -> Op:
    """Return the operation of a call; `average=False` is a sum, as in old scripts. Raises `ParallelError` for both."""
    if average is not None and op is not None:
        raise ParallelError("hvd.allreduce: `average` and `op` have the same meaning; give one of them")
    if op is not None and not isinstance(op, Op):
        raise ParallelError(f"hvd.allreduce(op={op!r}): it is hvd.Average, hvd.Sum, hvd.Min or hvd.Max")
    return op or (Op.SUM if average is False else Op.AVERAGE)


class Compression:
    """The format in which fp32 travels between hosts: unchanged, or fp16; sums are fp32 either way."""

    none = None
    fp16 = "fp16"


def barrier() -> None:
    """Wait until all ranks have called it."""
    _barrier(engine())


def broadcast_object(obj: Any = None, root_rank: int = 0, name: str | None = None) -> Any:  # noqa: ARG001
    """Return the root's object, of any type that pickle supports."""
    return objects.broadcast_object(engine(), obj, root_rank)


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:  # noqa: ARG001
    """Return the objects of all ranks, in the order of ranks."""
    return objects.all_gather_objects(engine(), obj)
