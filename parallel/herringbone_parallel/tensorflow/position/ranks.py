"""The ranks that train together, by whichever library or strategy joins them."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import tensorflow as tf

from herringbone_contract.errors import ParallelError
from herringbone_parallel.position.training import Peers
from herringbone_parallel.reduce.collectives import all_gather
from herringbone_parallel.tensorflow.data_parallel import state


def peers(strategy: Any = None) -> Peers:
    """Return the ranks: of the data-parallel library or Horovod's names, of a multi-worker strategy, or one alone.

    Raises `ParallelError` in a job of several ranks that nobody has joined.
    """
    if state.is_initialized():
        engine = state.get().engine
        return Peers(engine.rank, engine.size, lambda data: all_gather(engine, data))
    strategy = strategy or tf.distribute.get_strategy()
    resolver = strategy.cluster_resolver
    workers = len(resolver.cluster_spec().as_dict().get("worker", [])) if resolver is not None else 0
    if workers > 1:
        if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
            raise ParallelError(f"{type(strategy).__name__}: the workers have no common steps, so no place in the data")
        return Peers(resolver.task_id, workers, lambda data: _gathered(strategy, data))
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ParallelError("several ranks, and none has joined the others: call init() first, or train in a strategy")
    return Peers()


def _gathered(strategy: Any, data: bytes) -> list[bytes]:
    own = np.frombuffer(data, np.uint8)
    # Each of this rank's devices gives a part; only the first has values.
    parts = [own, *(own[:0] for _ in range(strategy.extended._num_devices_per_worker - 1))]
    sizes = _gather(strategy, [np.array([len(part)]) for part in parts])
    values = _gather(strategy, parts)
    ends = np.cumsum(sizes)
    return [values[end - size : end].tobytes() for size, end in zip(sizes, ends, strict=True)][:: len(parts)]


def _gather(strategy: Any, parts: list[Any]) -> Any:
    values = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(parts[context.replica_id_in_sync_group % len(parts)])
    )
    return strategy.gather(values, axis=0).numpy()
