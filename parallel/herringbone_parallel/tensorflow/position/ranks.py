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
        raise ParallelError(
            "several ranks, and none has joined the others: call init() first, or be in the scope of a strategy"
        )
    return Peers()


def _gathered(strategy: Any, data: bytes) -> list[bytes]:
    # Collectives carry no bytes.
    own = np.frombuffer(data + bytes(-len(data) % 4), np.int32)
    devices = strategy.extended._num_devices_per_worker

    def gather(values: Any) -> Any:
        # Each of this rank's devices gives a part; only the first has values.
        parts = [values, *(values[:0] for _ in range(devices - 1))]
        distributed = strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(parts[context.replica_id_in_sync_group % devices])
        )
        return strategy.gather(distributed, axis=0).numpy()

    sizes = gather(np.array([len(data)], np.int32))
    ends = np.cumsum(-(-sizes // 4)) * 4
    joined = gather(own).tobytes()
    begins = [0, *ends[:-1]]
    return [joined[begin : begin + size] for begin, size in zip(begins, sizes, strict=True)]
