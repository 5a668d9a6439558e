"""Makes parameters equal on all ranks, including those of layers that get their shapes from the first batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from mxnet.gluon.parameter import DeferredInitializationError, Parameter

from herringbone_contract.errors import ParallelError
from herringbone_parallel.mxnet.arrays import fetched, store
from herringbone_parallel.reduce.collectives import broadcast
from herringbone_parallel.reduce.comparison import are_equal
from herringbone_parallel.reduce.horovod import engine


def broadcast_parameters(params: Mapping[str, Any], root_rank: int = 0, prefix: str | None = None) -> None:  # noqa: ARG001
    """Give every rank the parameters of rank `root_rank`, in place, unless all ranks have the same values already.

        hvd.broadcast_parameters(net.collect_params(), root_rank=0)

    `params` are a block's parameters, or a module's arrays by name. A parameter without a shape is broadcast inside the
    first forward, when it gets one. Raises `ParallelError` for a parameter without values, and for one on several
    devices, because a rank has one device.
    """
    arrays = []
    for name, value in sorted(params.items()):
        if not isinstance(value, Parameter):
            arrays.append(value)
            continue
        try:
            arrays.append(data_of(value))
        except DeferredInitializationError:
            _broadcast_when_initialized(value, root_rank)
        except RuntimeError as error:
            raise ParallelError(f"hvd.broadcast_parameters: {name} has no values yet: {error}") from None
    _broadcast_arrays(arrays, root_rank)


def data_of(parameter: Any) -> Any:
    """Return a parameter's array. Raises `ParallelError` for a parameter on several devices."""
    copies = parameter.list_data()
    if len(copies) > 1:
        raise ParallelError(
            f"{parameter.name} is on {len(copies)} devices: a rank has one; start a rank per device"
            " (processes_per_host) and initialize with ctx=mx.gpu(hvd.local_rank())"
        )
    return copies[0]


def _broadcast_arrays(arrays: Sequence[Any], root_rank: int) -> None:
    values = [np.ascontiguousarray(fetched(array, "a parameter")) for array in arrays]
    # Digests cost one small gather, a broadcast all the bytes.
    if are_equal(engine(), values):
        return
    # One broadcast of all bytes instead of one per array.
    joined = np.concatenate([value.reshape(-1).view(np.uint8) for value in values])
    broadcast(engine(), joined, root_rank)
    start = 0
    for array, value in zip(arrays, values, strict=True):
        piece = joined[start : start + value.nbytes]
        # A copy, because a slice of bytes may start at an address that the type does not allow.
        store(np.frombuffer(piece.tobytes(), value.dtype).reshape(value.shape), array)
        start += value.nbytes


def _broadcast_when_initialized(parameter: Any, root_rank: int) -> None:
    """Extend a parameter's initialization by a broadcast; MXNet initializes it in the forward, before it is used."""
    initialize = parameter._init_impl

    def initialize_and_broadcast(*arguments: Any) -> None:
        initialize(*arguments)
        # Restore the method of the class, so that a later initialization does not broadcast again.
        del parameter._init_impl
        _broadcast_arrays([data_of(parameter)], root_rank)

    parameter._init_impl = initialize_and_broadcast
