"""State of the data-parallel library in this process: the engine, and this rank's number."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from herringbone_contract.errors import ParallelError
from herringbone_contract.library_hooks import require
from herringbone_parallel.core.sums.aggregation import Aggregation, aggregation
from herringbone_parallel.core.sums.links import Cost
from herringbone_parallel.reduce import session
from herringbone_parallel.reduce.advising import SumObserver, log_advice
from herringbone_parallel.reduce.engine import Engine
from herringbone_parallel.reduce.fused import Bucket
from herringbone_parallel.reduce.probing import measure
from herringbone_parallel.tensorflow.library_hooks import DATA_PARALLEL
from herringbone_parallel.tensorflow.patches import Patches


@dataclass
class State:
    """State of the library in this process, from `init` to `shutdown`."""

    engine: Engine
    # The time that sums take between these ranks; it decides the sizes of buckets.
    cost: Cost
    aggregation: Aggregation
    # Returns the engine to its owner: the session of the process, or the ranks of one partition.
    leave: Callable[[], None] = session.leave
    # Objects that every step reuses, by the gradients that they belong to.
    reductions: dict[Any, Any] = field(default_factory=dict)
    comparisons: dict[Any, Any] = field(default_factory=dict)
    aggregators: dict[Any, Any] = field(default_factory=dict)
    # True once a step is timed for the advice. Rank 0 times the first gradients of the job.
    observed: bool = False
    # Changes to Keras, which `shutdown` takes back.
    patches: Patches = field(default_factory=Patches)

    def observe(self, buckets: Sequence[Bucket]) -> SumObserver | None:
        """Return a timer for one of the first steps of these buckets, the first time; afterwards None."""
        if self.observed or self.engine.rank or not buckets:
            return None
        self.observed = True
        sizes = [bucket.count * bucket.dtype.itemsize for bucket in buckets]
        return SumObserver(sizes, buckets[0].element, partial(log_advice, self.engine, self.cost))


_state: State | None = None


def get() -> State:
    """Return the state; raises `ParallelError` before `init`."""
    if _state is None:
        raise ParallelError("init() of the data-parallel library has not been called; call it first in the script")
    return _state


def init() -> None:
    """Join the other ranks of the job; every rank calls it once, before any other function of this library.

        import smdistributed.dataparallel.tensorflow as sdp
        sdp.init()

    Raises `ParallelError` in a process that no launcher started as a rank, and on a second call.
    """
    global _state
    if _state is not None:
        raise ParallelError("init() has been called already; the library is initialized once in a process")
    # Here, because the model-parallel library imports this module, and has backups of its own.
    from herringbone_parallel.tensorflow.data_parallel.backups import keep_apart

    require(DATA_PARALLEL)
    settings = aggregation(os.environ)
    engine = session.enter()
    # `cost` measures, and all ranks must do so together. Later, one rank might trace a function again alone.
    _state = State(engine, session.cost(), settings)
    keep_apart(engine.rank, _state.patches)


def serve(engine: Engine) -> None:
    """Use an engine over some ranks of the job, until `shutdown` closes it; each of these ranks calls it.

    To scripts these ranks are the whole job. Model parallelism calls it for the ranks that hold the same partition.
    """
    global _state
    if _state is not None:
        raise ParallelError(
            "smp.init() after init() of the data-parallel library, or hvd.init(): with modelparallel it is smp.init()"
            " that joins the replicas; leave the other out"
        )
    _state = State(engine, measure(engine), aggregation(os.environ), leave=engine.close)


def is_initialized() -> bool:
    """Say whether `init` has run and `shutdown` has not."""
    return _state is not None


def shutdown() -> None:
    """Leave the other ranks; runs by itself at the end of the script."""
    global _state
    if _state is not None:
        # Cleared first: if leaving fails, the library must not look initialized.
        leave, patches, _state = _state.leave, _state.patches, None
        patches.undo()
        leave()


def size() -> int:
    """Return the number of ranks."""
    return get().engine.size


def rank() -> int:
    """Return this process's number among all ranks."""
    return get().engine.rank


def local_size() -> int:
    """Return the number of ranks on this host."""
    return get().engine.local_size


def local_rank() -> int:
    """Return this process's number among the ranks of its host, which is the number of its GPU."""
    return get().engine.local_rank
