"""Copies between MXNet's arrays and numpy's. A copy waits until MXNet, which computes in the background, is done."""

from __future__ import annotations

from typing import Any

import numpy as np

from herringbone_contract.errors import ParallelError
from herringbone_parallel.reduce.elements import Array

# The types that the engine sums without a conversion.
SUMMED = ("float16", "float32", "float64", "int32", "int64", "uint8")


def element_of(array: Any) -> str:
    """Return the name of an array's type."""
    return str(np.dtype(array.dtype).name)


def fetched(array: Any, what: str) -> Array:
    """Return a copy of an array's values; `what` names it in messages. Raises `ParallelError` for a sparse array."""
    if array.stype != "default":
        raise ParallelError(
            f"{what} is a {array.stype} array: give one that is not sparse (array.tostype('default'); a parameter's"
            " grad_stype='default')"
        )
    values: Array = array.asnumpy()
    return values


def store(values: Array, array: Any) -> None:
    """Copy values into an array on any device; the caller may change the values afterwards."""
    # MXNet copies into the array's own memory, on its own device; an empty index is the one of a scalar.
    array[() if array.shape == () else slice(None)] = values


def flat(state: Any) -> list[Any]:
    """Return the arrays of an optimizer's state, which may be nested."""
    if isinstance(state, (tuple, list)):
        return [array for one in state for array in flat(one)]
    return [] if state is None else [state]
