"""Horovod's names for TensorFlow, as far as example scripts use them: `import horovod.tensorflow as hvd`.

Horovod 0.28.1 cannot be built for current frameworks. The ranks of a job have these names if the real package is not
installed. Arguments that they do not support raise `ParallelError`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from herringbone_contract.errors import ParallelError
from herringbone_parallel.reduce import objects
from herringbone_parallel.reduce.collectives import all_gather
from herringbone_parallel.reduce.collectives import barrier as _barrier
from herringbone_parallel.reduce.fused import Array
from herringbone_parallel.tensorflow.data_parallel import state
from herringbone_parallel.tensorflow.data_parallel.compression import Compression
from herringbone_parallel.tensorflow.data_parallel.gradients import (
    ReduceOp,
    ReduceOptions,
    densified,
    gathered,
    refuse_devices,
)
from herringbone_parallel.tensorflow.data_parallel.operations import broadcast as _broadcast
from herringbone_parallel.tensorflow.data_parallel.operations import oob_allreduce
from herringbone_parallel.tensorflow.data_parallel.optimizer import distributed
from herringbone_parallel.tensorflow.data_parallel.reduction import not_converted, start_in_order
from herringbone_parallel.tensorflow.data_parallel.state import (
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)
from herringbone_parallel.tensorflow.data_parallel.tape import DistributedGradientTape as _Tape
from herringbone_parallel.tensorflow.data_parallel.variables import (
    BroadcastGlobalVariablesHook,
    broadcast_global_variables,
    broadcast_variables,
)
from herringbone_parallel.tensorflow.horovod import facts
from herringbone_parallel.tensorflow.horovod.facts import *  # noqa: F403

Average, Sum, Min, Max = ReduceOp.AVERAGE, ReduceOp.SUM, ReduceOp.MIN, ReduceOp.MAX

# ranks
__all__ = ["init", "shutdown", "is_initialized", "rank", "size", "local_rank", "local_size", *facts.__all__]
# tensors and objects
__all__ += ["allreduce", "grouped_allreduce", "allgather", "broadcast", "barrier"]
__all__ += ["broadcast_object", "broadcast_object_fn", "allgather_object"]
__all__ += ["Average", "Sum", "Min", "Max", "Compression"]
# variables and gradients
__all__ += ["broadcast_variables", "broadcast_global_variables", "BroadcastGlobalVariablesHook"]
__all__ += ["DistributedGradientTape", "DistributedOptimizer"]


def init() -> None:
    """Join the other ranks of the job; a second call does nothing."""
    if not is_initialized():
        state.init()


@not_converted
def allreduce(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,  # noqa: ARG001 - tensors are matched by the order of calls
    compression: Any = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> tf.Tensor:
    """Return the tensor's average over all ranks, or the result of `op`; `average=False` is a sum, as in old scripts.

    loss = hvd.allreduce(loss, op=hvd.Average)
    """
    if average is not None and op is not None:
        raise ParallelError("hvd.allreduce: `average` and `op` say the same; give one of them")
    chosen = op or (ReduceOp.SUM if average is False else ReduceOp.AVERAGE)
    if isinstance(tensor, tf.IndexedSlices) and chosen in (ReduceOp.AVERAGE, ReduceOp.SUM) and state.size() > 1:
        slices = gathered(tensor, chosen)
        factor = prescale_factor * postscale_factor
        return slices if factor == 1.0 else tf.IndexedSlices(slices.values * factor, slices.indices, slices.dense_shape)
    scaled = densified(tensor) if prescale_factor == 1.0 else densified(tensor) * prescale_factor
    result = oob_allreduce(scaled, compression, chosen)
    return result if postscale_factor == 1.0 else result * postscale_factor


def grouped_allreduce(tensors: Sequence[Any], *args: Any, **kwargs: Any) -> list[Any]:
    """Return `allreduce` of each tensor."""
    return [allreduce(tensor, *args, **kwargs) for tensor in tensors]


def barrier() -> None:
    """Wait until all ranks have called it."""
    _barrier(state.get().engine)


@not_converted
def allgather(tensor: Any, name: str | None = None) -> tf.Tensor:  # noqa: ARG001
    """Return the tensors of all ranks, joined along axis 0; only their lengths may differ."""
    tensor = tf.convert_to_tensor(tensor)
    engine = state.get().engine

    def gather(array: Array) -> Array:
        parts = all_gather(engine, np.ascontiguousarray(array).tobytes())
        return np.concatenate([np.frombuffer(part, array.dtype).reshape(-1, *array.shape[1:]) for part in parts])

    if tf.executing_eagerly():
        return tf.convert_to_tensor(gather(tensor.numpy()))
    result = start_in_order(gather, [tensor], tensor.dtype)
    result.set_shape([None, *tensor.shape[1:]])
    return result


def broadcast(tensor: Any, root_rank: int, name: str | None = None) -> tf.Tensor:  # noqa: ARG001
    """Return the tensor of rank `root_rank`."""
    return _broadcast(tensor, root_rank)


def broadcast_object(obj: Any, root_rank: int = 0, session: Any = None, name: str | None = None) -> Any:  # noqa: ARG001
    """Return the root's object, of any type that pickle takes."""
    return objects.broadcast_object(state.get().engine, obj, root_rank)


def broadcast_object_fn(root_rank: int = 0, session: Any = None, name: str | None = None) -> Callable[[Any], Any]:  # noqa: ARG001
    """Return a function that returns the root's object."""
    return lambda obj: broadcast_object(obj, root_rank)


def allgather_object(obj: Any, session: Any = None, name: str | None = None) -> list[Any]:  # noqa: ARG001
    """Return the objects of all ranks."""
    return objects.all_gather_objects(state.get().engine, obj)


def DistributedGradientTape(  # noqa: N802 - Horovod's name
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: ReduceOp = ReduceOp.AVERAGE,
    gradient_predivide_factor: float = 1.0,
) -> Any:
    """Return a tape whose gradients are averages over all ranks."""
    _refuse_factor(gradient_predivide_factor)
    return _Tape(gradtape, device_dense, device_sparse, compression, sparse_as_dense, op)


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    *,
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int | None = None,
    op: ReduceOp = ReduceOp.AVERAGE,
    average_aggregated_gradients: bool = False,
    **others: Any,
) -> Any:
    """Return an optimizer that applies averages over all ranks, for Keras or `tf.compat.v1.train`.

    With `backward_passes_per_step` (n) it steps every n-th time, by the sum of the gradients over the passes, or by
    their average with `average_aggregated_gradients`. Without it, the job's settings `aggregation_frequency` and
    `average_aggregated_gradients` apply.
    """
    refuse_devices(device_dense=others.pop("device_dense", ""), device_sparse=others.pop("device_sparse", ""))
    _refuse_factor(others.pop("gradient_predivide_factor", 1.0))
    if others:
        raise ParallelError(f"hvd.DistributedOptimizer has no {', '.join(sorted(others))} here: leave it out")
    passes, averaged = state.get().aggregation
    if backward_passes_per_step is not None:
        passes, averaged = backward_passes_per_step, average_aggregated_gradients
    options = ReduceOptions(compression, op, sparse_as_dense)
    # In Horovod a schedule counts backward passes. A script that sets their number expects that; the job's setting
    # must not change a script's schedule.
    return distributed(
        optimizer,
        options,
        name=name,
        use_locking=use_locking,
        frequency=passes,
        summed=not averaged,
        schedule_by_steps=backward_passes_per_step is None,
    )


def _refuse_factor(factor: float) -> None:
    if factor != 1.0:
        raise ParallelError(
            f"gradient_predivide_factor={factor}: sums are divided once, after they are taken in fp32; leave it out"
        )
