"""Operations on single tensors over all ranks: for gradients that a script handles itself, metrics, shared values."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from herringbone_contract.errors import ParallelError
from herringbone_parallel.reduce.collectives import all_gather
from herringbone_parallel.reduce.collectives import broadcast as broadcast_array
from herringbone_parallel.reduce.engine import Engine
from herringbone_parallel.reduce.fused import Array
from herringbone_parallel.tensorflow.data_parallel import state
from herringbone_parallel.tensorflow.data_parallel.compression import Compression
from herringbone_parallel.tensorflow.data_parallel.gradients import ReduceOp, densified
from herringbone_parallel.tensorflow.data_parallel.reduction import RunningSums, not_converted, start_in_order


@not_converted
def allreduce(
    tensor: Any,
    param_index: int,
    num_params: int,
    compression: Any = Compression.none,
    op: ReduceOp = ReduceOp.AVERAGE,
) -> tf.Tensor:
    """Return one gradient's average (or sum) over all ranks.

        gradients = [sdp.allreduce(g, i, len(gradients)) for i, g in enumerate(gradients)]

    `param_index`: the gradient's number in the list of `num_params`. In a `tf.function` each gradient travels as soon
    as it is computed, several at once. Outside of one, each call waits for its sum; `DistributedGradientTape` sums all
    gradients together.
    """
    if not 0 <= param_index < num_params:
        raise ParallelError(f"param_index {param_index}: it is 0 to {num_params - 1} with num_params {num_params}")
    if op not in (ReduceOp.AVERAGE, ReduceOp.SUM):
        raise ParallelError(f"op {op}: gradients are averaged or summed; oob_allreduce has minimum and maximum")
    return oob_allreduce(densified(tensor), compression, op)


@not_converted
def oob_allreduce(tensor: Any, compression: Any = Compression.none, op: ReduceOp = ReduceOp.AVERAGE) -> tf.Tensor:
    """Return the average, sum, minimum or maximum of a tensor over all ranks: of losses, metrics, counts.

        loss = sdp.oob_allreduce(loss)

    The tensor has the same shape on all ranks. Integers have no average.
    """
    tensor = tf.convert_to_tensor(tensor)
    if op is ReduceOp.AVERAGE and not tensor.dtype.is_floating:
        raise ParallelError(f"an average of {tensor.dtype.name}: only floating point can be averaged; cast it, or sum")
    packed, context = compression.compress(tensor)
    engine = state.get().engine
    result = _extreme(engine, packed, op) if op in (ReduceOp.MIN, ReduceOp.MAX) else _Sum(engine, op)(packed)
    result.set_shape(packed.shape)
    return compression.decompress(result, context)


@not_converted
def broadcast(tensor: Any, root_rank: int) -> tf.Tensor:
    """Return the tensor of rank `root_rank`; it has the same shape on all ranks.

    start = sdp.broadcast(start, root_rank=0)
    """
    tensor = tf.convert_to_tensor(tensor)
    engine = state.get().engine

    def send(array: Array) -> Array:
        # The broadcast writes into its array, and TensorFlow owns the memory of the argument.
        copy = np.array(array)
        broadcast_array(engine, copy.reshape(-1), root_rank)
        return copy

    if tf.executing_eagerly():
        return tf.convert_to_tensor(send(tensor.numpy()))
    result = start_in_order(send, [tensor], tensor.dtype)
    result.set_shape(tensor.shape)
    return result


def overlap(tensor: tf.Tensor) -> tf.Tensor:
    """Return the tensor; in AWS's library this call marks where sums may run while XLA computes.

    Here sums may always run during the computation.
    """
    return tf.identity(tensor)


class _Sum:
    """A sum that starts in the order of the graph; the operation that needs it waits for it."""

    def __init__(self, engine: Engine, op: ReduceOp) -> None:
        self._engine, self._op = engine, op
        self._running = RunningSums()

    def __call__(self, tensor: tf.Tensor) -> tf.Tensor:
        if tf.executing_eagerly():
            return tf.convert_to_tensor(self._running.wait(self._start(tensor.numpy())))
        ticket = start_in_order(self._start, [tensor], tf.int64)
        # Not stateful: a stateful wait would hold up the sums that start after it.
        return tf.numpy_function(self._running.wait, [ticket], tensor.dtype, stateful=False)

    def _start(self, array: Array) -> np.int64:
        # The engine sums in place, and TensorFlow owns the memory of the argument.
        copy = np.array(array)
        flat = copy.reshape(-1)
        name = flat.dtype.name
        # numpy exposes no buffer of bfloat16; the engine gets the bytes and the name of the type.
        stored = flat.view(np.uint16) if name == "bfloat16" else flat
        return self._running.add(copy, self._engine.all_reduce(stored, dtype=name, op=self._op.value))


def _extreme(engine: Engine, tensor: tf.Tensor, op: ReduceOp) -> tf.Tensor:
    choose = np.minimum if op is ReduceOp.MIN else np.maximum

    # The engine only sums. Extremes are for metrics, which are small, so every rank gets all values.
    def gather(array: Array) -> Array:
        arrays = [np.frombuffer(data, array.dtype).reshape(array.shape) for data in all_gather(engine, array.tobytes())]
        return np.asarray(choose.reduce(arrays))

    return (
        tf.convert_to_tensor(gather(tensor.numpy()))
        if tf.executing_eagerly()
        else start_in_order(gather, [tensor], tensor.dtype)
    )
