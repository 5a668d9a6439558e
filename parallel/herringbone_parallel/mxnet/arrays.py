"""MXNet's arrays and numpy's: what can travel, out of MXNet and back. A copy waits for whatever computes the array."""

from __future__ import annotations

from typing import Any

import numpy as np

from herringbone_contract.errors import ParallelError
from herringbone_parallel.reduce.elements import Array

# What the engine adds up as it is.
SUMMED = ("float16", "float32", "float64", "int32", "int64", "uint8")


def element_of(array: Any) -> str:
    """Return the name of an array's type."""
    return str(np.dtype(array.dtype).name)


def fetched(array: Any, what: str) -> Array:
    """Return an array's values, in memory of their own. Raises `ParallelError` for a sparse one."""
    if array.stype != "default":
        raise ParallelError(
            f"{what} is a {array.stype} array: give one that is not sparse (array.tostype('default'); a parameter's"
            " grad_stype='default')"
        )
    values: Array = array.asnumpy()
    return values


def store(values: Array, array: Any) -> None:
    """Put values into an array, wherever it lies; the values may be changed afterwards."""
    array[() if array.shape == () else slice(None)] = values
