"""State of the library in this process: settings, position in the grid, connections, and the owner of each variable.

Other files of this package import this one. It knows the model only as a `SplitModel`, because `model.py` imports
most of those files.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import tensorflow as tf

from herringbone_contract.errors import ParallelError
from herringbone_contract.library_hooks import require
from herringbone_parallel.allocator import keep_pages
from herringbone_parallel.core import launch
from herringbone_parallel.core.grid import Grid
from herringbone_parallel.reduce import session
from herringbone_parallel.reduce.engine import Engine
from herringbone_parallel.reduce.subsets import join_subset

# Model parallelism uses four files of the data-parallel library: `state`, `gradients`, `variables` and `reduction`.
# They sum over the replicas of a partition as they sum over the ranks of a data-parallel job. The data-parallel library
# imports nothing from this one; import-linter and tests/parallel/tensorflow/test_loaded_modules.py check that.
from herringbone_parallel.tensorflow.data_parallel import state as data_parallel
from herringbone_parallel.tensorflow.library_hooks import MODEL_PARALLEL
from herringbone_parallel.tensorflow.model_parallel.runtime.transport import Transport, connect
from herringbone_parallel.tensorflow.model_parallel.timeline import hand_in, open_timeline
from herringbone_parallel.tensorflow.model_parallel.unsupported import watch_norms, watch_optimizers
from herringbone_parallel.tensorflow.patches import Patches
from herringbone_parallel.tensorflow.require import require_keras_on_tensorflow
from herringbone_parallel.timeline import Timeline

if TYPE_CHECKING:
    from herringbone_contract.model_parallel.version1 import ResolvedModelParallel

# A step inside a `tf.function` holds one thread while its segments run in others.
_LEAST_THREADS = 4


class SplitModel(Protocol):
    """The members of `DistributedModel` that the other files of this package use."""

    name: str

    @property
    def variables(self) -> list[Any]: ...
    @property
    def weights(self) -> list[Any]: ...
    @property
    def trainable_variables(self) -> list[Any]: ...
    @property
    def trainable_weights(self) -> list[Any]: ...
    def all_variables(self) -> list[Any]: ...
    def _flatten_layers(self) -> Any: ...


class CreatedLayer(NamedTuple):
    """A layer and the partition in whose `with smp.partition` block it was created."""

    # The reference keeps the layer alive. Otherwise Python could give its id to another layer.
    layer: Any
    partition: int


class DeferredVariable(NamedTuple):
    """A variable without memory, and the function that computes its first value."""

    variable: Any
    initial_value: Callable[[], Any]


@dataclass
class State:
    """State of the library in this process, from `init` to `shutdown`."""

    settings: ResolvedModelParallel
    grid: Grid
    rank: int
    local_rank: int
    local_size: int
    transport: Transport | None
    # Sums over the ranks that hold the same partition; None where only one rank holds it.
    replicas: Engine | None = None
    model: SplitModel | None = None
    steps: int = 0
    # The partition of each variable of the model, by the id of its handle.
    owners: dict[int, int] = field(default_factory=dict)
    # The handles of variables that have got a value or have been freed. The dict keeps the handles alive, so that an
    # id in `owners` never passes to another handle.
    settled: dict[int, Any] = field(default_factory=dict)
    # The layers that were created inside a `with smp.partition` block, by id.
    made_in: dict[int, CreatedLayer] = field(default_factory=dict)
    deferred: list[DeferredVariable] = field(default_factory=list)
    hooks: list[Callable[[], Any]] = field(default_factory=list)
    # The partition of each layer with variables, by the layer's id, once the automatic partition is decided.
    assigned: dict[int, int] | None = None
    partitioned: bool = False
    # This rank holds the variables of all ranks for now, to read or write files of the whole model.
    holds_all: bool = False
    # The number of times that the model has dropped the functions of its `fit`, `evaluate` or `predict`.
    compilation: int = 0
    # The arguments of the model's first call, as shapes for a batch of any size.
    signature: Any = None
    timeline: Timeline | None = None
    # Changes to Keras, which `shutdown` takes back.
    patches: Patches = field(default_factory=Patches)
    # The largest number of microbatches that were live at once in the last step.
    peak_live: int = 0

    @cached_property
    def pp_rank(self) -> int:
        return self.grid.coordinates(self.rank)["P"]

    @property
    def averages(self) -> bool:
        """Say whether a step averages its gradients over the replicas; with `horovod` the script does so."""
        return self.replicas is not None and not self.settings.horovod

    @cached_property
    def pipeline(self) -> tuple[int, ...]:
        """Return the ranks that hold this pipeline's partitions, in the order of the partitions."""
        return self.grid.group("P", self.rank)

    def trainability(self) -> tuple[bool, ...]:
        """Return for each layer and weight of the model whether it is trained."""
        layers = () if self.model is None else self.model._flatten_layers()
        # Not `model.variables`: metrics, which are among them, get theirs after the trace of a step.
        return tuple(
            part.trainable
            for layer in layers
            for part in (layer, *layer._trainable_variables, *layer._non_trainable_variables)
        )

    def owner_of(self, variable: Any) -> int | None:
        """Return the partition that holds a variable of the model; None for a variable that every rank has."""
        return self.owners.get(id(variable.handle))

    def is_local(self, variable: Any) -> bool:
        """Say whether this rank holds a variable; before the model is partitioned, every rank holds all of them."""
        return self.owner_of(variable) in (None, self.pp_rank)

    def may_read(self, variable: Any) -> bool:
        """Say whether a variable has a value on this rank, and the script may read it."""
        return self.holds_all or self.is_local(variable)


_state: State | None = None
_tracing = False


def get() -> State:
    """Return the state; raises `ParallelError` before `init`."""
    if _state is None:
        raise ParallelError("smp.init() has not been called; call it first in the script")
    return _state


def is_initialized() -> bool:
    """Say whether `init` has run."""
    return _state is not None


def is_tracing() -> bool:
    """Say whether a step function is being traced: then every rank sees the whole model."""
    return _tracing


@contextmanager
def tracing() -> Iterator[None]:
    """Mark the `with` block as the trace of a step function; only `placement.trace` calls it."""
    global _tracing
    before, _tracing = _tracing, True
    try:
        yield
    finally:
        _tracing = before


def init() -> None:
    """Join the other ranks of the job, with the settings of the estimator's `distribution` dict.

        import smdistributed.modelparallel.tensorflow as smp
        smp.init()

    A second call does nothing. Raises `ParallelError` outside a launched rank, and for settings that this release
    does not support.
    """
    global _state
    if _state is not None:
        return
    require_keras_on_tensorflow()
    require(MODEL_PARALLEL)
    settings = launch.model_parallel(os.environ, "tensorflow")
    rank_info = launch.rank_info(os.environ)
    grid = Grid(settings.mesh(rank_info.size), settings.placement)
    _refuse(settings, grid)
    _reserve_threads()
    if grid.pipeline > 1:
        keep_pages()
    transport = connect(session.enter(), session.settings()) if rank_info.size > 1 else None
    replicas = _join_replicas(settings, grid, rank_info.rank)
    timeline = open_timeline(rank_info.rank, transport, os.environ)
    _state = State(
        settings=settings,
        grid=grid,
        rank=rank_info.rank,
        local_rank=rank_info.local_rank,
        local_size=rank_info.local_size,
        transport=transport,
        replicas=replicas,
        timeline=timeline,
    )
    if grid.pipeline > 1:
        watch_optimizers(_state.patches)
        watch_norms(_state.patches, is_tracing)
    atexit.register(shutdown)


def shutdown() -> None:
    """Leave the other ranks; runs by itself at the end of the script."""
    global _state
    if _state is None:
        return
    state, _state = _state, None
    state.patches.undo()
    atexit.unregister(shutdown)
    if state.replicas is not None or state.settings.horovod:
        data_parallel.shutdown()
    # The timeline is sent over the transport, and the transport reads failures from the session's engine.
    if state.timeline is not None:
        hand_in(state.timeline, state.transport)
    if state.transport is not None:
        state.transport.close()
        session.leave()


def _join_replicas(settings: ResolvedModelParallel, grid: Grid, rank: int) -> Engine | None:
    """Join the ranks of this partition, and make the data-parallel library work among them; None for a lone rank.

    With `horovod`, the script calls the data-parallel library even where there is only one replica.
    """
    if grid.world_size == 1 and settings.horovod:
        data_parallel.init()
    if grid.world_size == 1 or (grid.data == 1 and not settings.horovod):
        return None
    engine = join_subset(session.current(), grid.group("D", rank))
    data_parallel.serve(engine)
    return engine if grid.data > 1 else None


def _refuse(settings: ResolvedModelParallel, grid: Grid) -> None:
    """Raise `ParallelError` for settings that have no effect on these ranks."""
    if settings.partition_file is not None and not (settings.auto_partition and grid.pipeline > 1):
        raise ParallelError(
            "partition_file keeps an automatic partition, and this job has none: set `auto_partition`, with more than"
            " one partition, or unset `partition_file` and `load_partition`"
        )


def _reserve_threads() -> None:
    """Give TensorFlow's executor enough threads for a step inside a `tf.function`.

    Such a step waits in one thread of the executor, and its segments need others. TensorFlow takes one thread per
    core where the script sets no number.
    """
    threading = tf.config.threading
    threads = threading.get_inter_op_parallelism_threads()
    if threads == 1 or (threads == 0 and len(os.sched_getaffinity(0)) < _LEAST_THREADS):
        try:
            threading.set_inter_op_parallelism_threads(_LEAST_THREADS)
        except RuntimeError:
            # TensorFlow refuses to change the number once it runs. Only one single thread would block forever.
            if threads != 1:
                return
            raise ParallelError(
                "TensorFlow has started with one thread between operations, and a step inside a tf.function needs two:"
                " call smp.init() first, or tf.config.threading.set_inter_op_parallelism_threads(2)"
            ) from None
