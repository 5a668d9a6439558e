"""Single arrays over all ranks: metrics, gradients that a script handles itself, values to share.

Every rank calls them in the same order: names tell nothing apart here. Each waits for its result.
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
    """Return the array's average over all ranks, or what `op` says; `average=False` is a sum, as in old scripts.

        loss = hvd.allreduce(loss)

    Integers have a sum, and no average. Raises `ParallelError` for a sparse array.
    """
    return allreduce_(tensor.copy(), average, name, priority, prescale_factor, postscale_factor, op)


def allreduce_(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,  # noqa: ARG001 - the order of calls tells arrays apart
    priority: int = 0,  # noqa: ARG001 - as above: sums are taken in the order of calls
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: Op | None = None,
) -> Any:
    """As `allreduce`, in place."""
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
    """Return the arrays of all ranks one behind the other; they may differ in length, in no other dimension."""
    import mxnet as mx

    values = fetched(tensor, "the array of hvd.allgather")
    joined = np.concatenate([part.reshape(-1, *values.shape[1:]) for part in _gathered(values)])
    return mx.nd.array(joined, ctx=tensor.context, dtype=values.dtype)


def broadcast(tensor: Any, root_rank: int, name: str | None = None, priority: int = 0) -> Any:
    """Return what rank `root_rank` gave."""
    return broadcast_(tensor.copy(), root_rank, name, priority)


def broadcast_(tensor: Any, root_rank: int, name: str | None = None, priority: int = 0) -> Any:  # noqa: ARG001
    """Give every rank the array of rank `root_rank`, in place."""
    values = fetched(tensor, "the array of hvd.broadcast")
    _broadcast(engine(), values, root_rank)
    store(values, tensor)
    return tensor


def _combined(values: Array, op: Op) -> Array:
    if op in (Op.MIN, Op.MAX):
        choose = np.minimum if op is Op.MIN else np.maximum
        return np.asarray(choose.reduce([part.reshape(values.shape) for part in _gathered(values)]))
    summed = values if values.dtype.name in SUMMED else values.astype(np.int64)
    engine().all_reduce(summed.reshape(-1), op=op.value).wait()
    return summed.astype(values.dtype, copy=False)


def _gathered(values: Array) -> list[Array]:
    """Return each rank's elements, flat."""
    parts = all_gather(engine(), np.ascontiguousarray(values).tobytes())
    return [np.frombuffer(part, values.dtype) for part in parts]
