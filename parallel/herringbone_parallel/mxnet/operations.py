"""Horovod's operations on single arrays, such as metrics and gradients that a script handles itself.

All ranks call them in the same order, by which operations are matched; names have no effect. Each waits for its result.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from herringbone_contract.errors import ParallelError
from herringbone_parallel.mxnet.arrays import SUMMED, element_of, fetched, store
from herringbone_parallel.reduce.collectives import all_gather
from herringbone_parallel.reduce.collectives import broadcast as _broadcast
from herringbone_parallel.reduce.elements import Array
from herringbone_parallel.reduce.horovod import Op, chosen_op, engine


def allreduce(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: Op | None = None,
) -> Any:
    """Return the array's average over all ranks, or the result of `op`; `average=False` is a sum, as in old scripts.

        loss = hvd.allreduce(loss)

    Raises `ParallelError` for an average of integers and for a sparse array.
    """
    return allreduce_(tensor.copy(), average, name, priority, prescale_factor, postscale_factor, op)


def allreduce_(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,  # noqa: ARG001 - the order of calls identifies arrays
    priority: int = 0,  # noqa: ARG001 - sums are computed in the order of calls
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: Op | None = None,
) -> Any:
    """Do `allreduce` in place."""
    chosen = chosen_op(average, op)
    if chosen is Op.AVERAGE and not element_of(tensor).startswith("float"):
        raise ParallelError(f"hvd.allreduce: an average of {element_of(tensor)}: cast it, or give op=hvd.Sum")
    values = fetched(tensor, "the array of hvd.allreduce")
    if prescale_factor != 1.0:
        values *= prescale_factor
    values = _combined(values, chosen)
    if postscale_factor != 1.0:
        values *= postscale_factor
    store(values, tensor)
    return tensor


def allgather(tensor: Any, name: str | None = None, priority: int = 0) -> Any:  # noqa: ARG001
    """Return the arrays of all ranks, concatenated; they may differ in their first dimension only."""
    import mxnet as mx

    values = fetched(tensor, "the array of hvd.allgather")
    joined = np.concatenate([part.reshape(-1, *values.shape[1:]) for part in _gathered(values)])
    return mx.nd.array(joined, ctx=tensor.context, dtype=values.dtype)


def broadcast(tensor: Any, root_rank: int, name: str | None = None, priority: int = 0) -> Any:
    """Return the array of rank `root_rank`."""
    return broadcast_(tensor.copy(), root_rank, name, priority)


def broadcast_(tensor: Any, root_rank: int, name: str | None = None, priority: int = 0) -> Any:  # noqa: ARG001
    """Give every rank the array of rank `root_rank`, in place."""
    values = fetched(tensor, "the array of hvd.broadcast")
    _broadcast(engine(), values, root_rank)
    store(values, tensor)
    return tensor


def _combined(values: Array, op: Op) -> Array:
    if op in (Op.MIN, Op.MAX):
        # The engine only sums: each rank gathers all arrays and combines them.
        choose = np.minimum if op is Op.MIN else np.maximum
        return np.asarray(choose.reduce([part.reshape(values.shape) for part in _gathered(values)]))
    # Other integers are summed as int64, and converted back.
    summed = values if values.dtype.name in SUMMED else values.astype(np.int64)
    engine().all_reduce(summed.reshape(-1), op=op.value).wait()
    return summed.astype(values.dtype, copy=False)


def _gathered(values: Array) -> list[Array]:
    """Return each rank's elements, flat."""
    parts = all_gather(engine(), np.ascontiguousarray(values).tobytes())
    return [np.frombuffer(part, values.dtype) for part in parts]
