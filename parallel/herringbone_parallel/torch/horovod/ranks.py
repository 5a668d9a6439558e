"""Who this process is among the ranks of the job."""

from __future__ import annotations

from herringbone_parallel.reduce import Engine, session
from herringbone_spec.errors import ParallelError

_engine: Engine | None = None


def init() -> None:
    """Join the other ranks of the job; a second call does nothing."""
    global _engine
    if _engine is None:
        _engine = session.enter()


def shutdown() -> None:
    """Part from the other ranks; runs by itself at the end of the script."""
    global _engine
    if _engine is not None:
        _engine = None
        session.leave()


def is_initialized() -> bool:
    """Say whether `init` has run, and `shutdown` has not."""
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
