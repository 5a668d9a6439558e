"""What `init` sets up: this rank's settings, its place in the grid, its mail, and who holds which variable."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from herringbone_contract.errors import ParallelError
from herringbone_parallel.allocator import keep_pages
from herringbone_parallel.core import launch
from herringbone_parallel.core.grid import Grid
from herringbone_parallel.reduce import session
from herringbone_parallel.reduce.engine import Engine
from herringbone_parallel.reduce.subsets import join_subset
from herringbone_parallel.tensorflow.data_parallel import state as data_parallel
from herringbone_parallel.tensorflow.model_parallel.runtime.transport import Transport, connect
from herringbone_parallel.tensorflow.model_parallel.timeline import hand_in, open_timeline
from herringbone_parallel.tensorflow.model_parallel.training.refusals import watch_optimizers
from herringbone_parallel.tensorflow.patches import Patches
from herringbone_parallel.timeline import Timeline

if TYPE_CHECKING:
    from herringbone_contract.model_parallel import ResolvedModelParallel
    from herringbone_parallel.tensorflow.model_parallel.model import DistributedModel

# A step inside a `tf.function` holds one thread while its segments run in others.
_LEAST_THREADS = 4


@dataclass
class State:
    """The library's state in this process, from `init` to the end."""

    settings: ResolvedModelParallel
    grid: Grid
    rank: int
    local_rank: int
    local_size: int
    transport: Transport | None
    # Sums over the ranks that hold the same partition, where there are several.
    replicas: Engine | None = None
    model: DistributedModel | None = None
    steps: int = 0
    # The partition of each variable of the model, by the id of its handle.
    owners: dict[int, int] = field(default_factory=dict)
    # The handles of the model's variables that have been given a value, or freed: they keep their ids while they live.
    settled: dict[int, Any] = field(default_factory=dict)
    # The partition in whose `with smp.partition` a layer was made, by its id.
    made_in: dict[int, tuple[Any, int]] = field(default_factory=dict)
    # Variables without a value yet, and how to compute their first ones.
    deferred: list[tuple[Any, Callable[[], Any]]] = field(default_factory=list)
    hooks: list[Callable[[], Any]] = field(default_factory=list)
    # The partition of each layer with variables, by its id, once it has been decided automatically.
    assigned: dict[int, int] | None = None
    partitioned: bool = False
    # What the model takes: the arguments of its first call, as shapes for any batch.
    signature: Any = None
    timeline: Timeline | None = None
    # What Keras does otherwise until `shutdown`.
    patches: Patches = field(default_factory=Patches)
    # The most microbatches that were live at once in the last step.
    peak_live: int = 0

    @cached_property
    def pp_rank(self) -> int:
        return self.grid.coordinates(self.rank)["P"]

    @property
    def averages(self) -> bool:
        """Whether a step averages its gradients over the replicas; with `horovod` the script does."""
        return self.replicas is not None and not self.settings.horovod

    @cached_property
    def pipeline(self) -> tuple[int, ...]:
        """The ranks that hold this pipeline's partitions, in their order."""
        return self.grid.group("P", self.rank)

    def owner_of(self, variable: Any) -> int | None:
        """Return the partition that holds a variable of the model; None for one that every rank has."""
        return self.owners.get(id(variable.handle))

    def is_local(self, variable: Any) -> bool:
        """Say whether this rank holds a variable; all ranks do before the model is partitioned."""
        return self.owner_of(variable) in (None, self.pp_rank)


_state: State | None = None


def get() -> State:
    """Return the state; raises `ParallelError` before `init`."""
    if _state is None:
        raise ParallelError("smp.init() has not been called; call it first in the script")
    return _state


def is_initialized() -> bool:
    """Say whether `init` has run."""
    return _state is not None


def init() -> None:
    """Join the other ranks of the job, with the settings of the estimator's `distribution` dict.

        import smdistributed.modelparallel.tensorflow as smp
        smp.init()

    A second call does nothing. Raises `ParallelError` outside a launched rank, and for settings that this release
    cannot serve.
    """
    global _state
    if _state is not None:
        return
    settings = launch.model_parallel(os.environ)
    place = launch.rank_info(os.environ)
    grid = Grid(place.size, pipeline=settings.partitions, placement=settings.placement)
    _refuse(settings, grid)
    _have_threads()
    if grid.pipeline > 1:
        keep_pages()
    transport = connect(session.enter(), session.settings()) if place.size > 1 else None
    replicas = _join_replicas(settings, grid, place.rank)
    timeline = open_timeline(place.rank, transport, os.environ)
    where = (place.rank, place.local_rank, place.local_size)
    _state = State(settings, grid, *where, transport, replicas, timeline=timeline)
    if grid.pipeline > 1:
        watch_optimizers(_state.patches)
    atexit.register(shutdown)


def shutdown() -> None:
    """Part from the other ranks; runs by itself at the end of the script."""
    global _state
    if _state is None:
        return
    state, _state = _state, None
    state.patches.undo()
    atexit.unregister(shutdown)
    if state.replicas is not None or state.settings.horovod:
        data_parallel.shutdown()
    if state.timeline is not None:
        hand_in(state.timeline, state.transport)
    if state.transport is not None:
        state.transport.close()
        session.leave()


def _join_replicas(settings: ResolvedModelParallel, grid: Grid, rank: int) -> Engine | None:
    """Join the ranks of this partition, among which the data-parallel library works from here on; None for a lone one.

    With `horovod` scripts call that library, also where there is one replica only.
    """
    if grid.world_size == 1 and settings.horovod:
        data_parallel.init()
    if grid.world_size == 1 or (grid.data == 1 and not settings.horovod):
        return None
    engine = join_subset(session.current(), grid.group("D", rank))
    data_parallel.serve(engine)
    return engine if grid.data > 1 else None


def _refuse(settings: ResolvedModelParallel, grid: Grid) -> None:
    """Name what SMP v1 has and this release has not; nothing is silently ignored."""
    wished = {
        "ddp (replicas are averaged without it, or by the script with horovod)": settings.ddp,
        "tensor_parallel_degree > 1": settings.tensor_parallel_degree > 1,
        "sharded_data_parallel_degree > 1": settings.sharded_data_parallel_degree > 1,
        "pipeline 'zero_bubble'": settings.pipeline == "zero_bubble",
    }
    asked = [name for name, value in wished.items() if value]
    if asked:
        raise ParallelError(
            f"not available for TensorFlow in this release: {', '.join(asked)}. What there is: partitions,"
            " microbatches, active_microbatches, pipeline, placement_strategy, auto_partition,"
            " default_partition, optimize, contiguous, partition_file, load_partition, horovod."
        )
    if settings.partition_file is not None and not (settings.auto_partition and grid.pipeline > 1):
        raise ParallelError(
            "partition_file keeps an automatic partition, and this job has none: set `auto_partition`, with more than"
            " one partition, or unset `partition_file` and `load_partition`"
        )


def _have_threads() -> None:
    """See to it that a step inside a `tf.function`, which waits in a thread of the executor, leaves it others."""
    threading = tf.config.threading
    threads = threading.get_inter_op_parallelism_threads()
    if threads == 1 or (threads == 0 and len(os.sched_getaffinity(0)) < _LEAST_THREADS):
        try:
            threading.set_inter_op_parallelism_threads(_LEAST_THREADS)
        except RuntimeError:
            if threads != 1:
                return
            raise ParallelError(
                "TensorFlow has started with one thread between operations, and a step inside a tf.function needs two:"
                " call smp.init() first, or tf.config.threading.set_inter_op_parallelism_threads(2)"
            ) from None
