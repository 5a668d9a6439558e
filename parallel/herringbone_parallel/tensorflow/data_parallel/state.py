"""What `init` sets up: this rank's engine, and who it is."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.sums.aggregation import Aggregation, aggregation
from herringbone_parallel.core.sums.links import Cost
from herringbone_parallel.reduce import session
from herringbone_parallel.reduce.advising import SumObserver, log_advice
from herringbone_parallel.reduce.engine import Engine
from herringbone_parallel.reduce.fused import Bucket
from herringbone_parallel.reduce.probing import measure


@dataclass
class State:
    """The library's state in this process, from `init` to `shutdown`."""

    engine: Engine
    # What sums take between these ranks: buckets are cut by it.
    cost: Cost
    aggregation: Aggregation
    # How to give the engine back.
    leave: Callable[[], None] = session.leave
    # What is made once and used by every step, by the gradients that it is for.
    reductions: dict[Any, Any] = field(default_factory=dict)
    comparisons: dict[Any, Any] = field(default_factory=dict)
    aggregators: dict[Any, Any] = field(default_factory=dict)
    # Whether somebody times a step for the advice: of the job's first gradients, on rank 0.
    observed: bool = False

    def observe(self, buckets: Sequence[Bucket]) -> SumObserver | None:
        """Return what times one of the first steps of these buckets, once, for the advice; else None."""
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
    """Join the other ranks of the job; every rank calls it once, before anything else of this library.

        import smdistributed.dataparallel.tensorflow as sdp
        sdp.init()

    Raises `ParallelError` in a process that no launcher started as a rank, and when it is called a second time.
    """
    global _state
    if _state is not None:
        raise ParallelError("init() has been called already; the library is initialized once in a process")
    asked = aggregation(os.environ)
    engine = session.enter()
    # Now, as all ranks measure together: later, one might trace a function again that the others have at hand.
    _state = State(engine, session.cost(), asked)


def serve(engine: Engine) -> None:
    """Work among the ranks of this engine, some of the job's, until `shutdown` closes it; each of them calls it.

    To scripts they are all there are. Model parallelism calls it for the ranks that hold the same part of a model.
    """
    global _state
    if _state is not None:
        raise ParallelError(
            "smp.init() after init() of the data-parallel library, or hvd.init(): with modelparallel it is smp.init()"
            " that joins the replicas; leave the other out"
        )
    _state = State(engine, measure(engine), aggregation(os.environ), leave=engine.close)


def is_initialized() -> bool:
    """Say whether `init` has run, and `shutdown` has not."""
    return _state is not None


def shutdown() -> None:
    """Part from the other ranks; runs by itself at the end of the script."""
    global _state
    if _state is not None:
        leave, _state = _state.leave, None
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
    """Return this process's number among the ranks of its host: the GPU to use."""
    return get().engine.local_rank
