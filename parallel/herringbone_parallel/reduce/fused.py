"""Fuses gradients into buckets: flat buffers that are summed as a whole, with an offset for each gradient.

    buckets = cut(specs, dtypes, order=[2, 1, 0], cost=cost)
    flat = buckets[0].fill(gradients)           # summed in place by the engine
    buckets[0].pieces(flat)                     # its parts, in the gradients' shapes

Gradients are numpy arrays here. They share memory with a framework's tensors if that framework supports it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from herringbone_parallel.core.sums.buckets import cut_buckets, final_times, plan_buckets
from herringbone_parallel.core.sums.links import Cost

Array = npt.NDArray[Any]

# TensorFlow takes over an array without a copy if the array starts at a multiple of this.
_ALIGN_BYTES = 64
# The first bucket if the user has set a size: small, so that the network starts early.
_FIRST_BYTES = 1 << 20


def _references(arrays: Sequence[Array]) -> list[int]:
    return [sys.getrefcount(array) for array in arrays]


# The reference count of an array that is in one list only, which differs between releases of Python.
_FREE = _references([np.zeros(0)])[0]


class Spec(NamedTuple):
    """The properties of a gradient that all ranks must agree on: its variable's name, its element type, its shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class Bucket:
    """Some of the gradients, by their numbers, all of one type, and the buffers in which they travel."""

    def __init__(self, members: Sequence[int], specs: Sequence[Spec], dtype: np.dtype[Any]) -> None:
        self.members = tuple(members)
        self.dtype = dtype
        self.element = specs[members[0]].dtype
        self._shapes = [specs[member].shape for member in members]
        unit = max(1, _ALIGN_BYTES // dtype.itemsize)
        self._counts = [int(np.prod(shape, dtype=np.int64)) for shape in self._shapes]
        self._offsets = []
        self.count = 0
        for count in self._counts:
            self._offsets.append(self.count)
            self.count += -(-count // unit) * unit
        self._owned: list[Array] = []

    def fill(self, gradients: Sequence[Array]) -> Array:
        """Copy this bucket's gradients, in the order of `members`, into a buffer that nothing else uses; return it."""
        flat = self._buffer()
        for gradient, offset, count in zip(gradients, self._offsets, self._counts, strict=True):
            flat[offset : offset + count] = gradient.reshape(-1)
        return flat

    def pieces(self, flat: Array) -> list[Array]:
        """Return each gradient's part of the buffer, in its shape; the parts keep the buffer alive."""
        return [
            flat[offset : offset + count].reshape(shape)
            for offset, count, shape in zip(self._offsets, self._counts, self._shapes, strict=True)
        ]

    def _buffer(self) -> Array:
        """Return a buffer of zeros or of old sums; the gaps between gradients are always zero."""
        # Fresh memory costs as much as a copy, because the kernel clears each page at its first use. So buffers are
        # reused once the framework has dropped all pieces, each of which counts as a reference to the buffer's memory.
        for owned, references in zip(self._owned, _references(self._owned), strict=True):
            if references == _FREE:
                return self._aligned(owned)
        self._owned.append(np.zeros(self.count * self.dtype.itemsize + _ALIGN_BYTES, np.uint8))
        return self._aligned(self._owned[-1])

    @property
    def allocated_bytes(self) -> int:
        """The bytes of this bucket's buffers: usually two, because a framework drops old pieces late."""
        return sum(owned.nbytes for owned in self._owned)

    def _aligned(self, owned: Array) -> Array:
        start = -owned.ctypes.data % _ALIGN_BYTES
        return owned[start : start + self.count * self.dtype.itemsize].view(self.dtype)


def cut(
    specs: Sequence[Spec],
    dtypes: Sequence[np.dtype[Any]],
    order: Sequence[int],
    *,
    cost: Cost,
    most_bytes: int | None = None,
) -> list[Bucket]:
    """Cut the gradients into buckets, in the `order` in which they become ready.

    Sizes follow from the cost of sums, or are `most_bytes`. The time of the backward is not known when a function is
    traced; it is assumed to be the time of all sums.
    """
    if not order:
        return []
    sizes = [int(np.prod(specs[member].shape, dtype=np.int64)) * dtypes[member].itemsize for member in order]
    kinds = [(specs[member].dtype, size) for member, size in zip(order, sizes, strict=True)]
    if most_bytes is None:
        ready_s = final_times(sizes, backward_s=cost.seconds(sum(sizes)))
        buckets = plan_buckets(kinds, ready_s=ready_s, cost=cost)
    else:
        buckets = cut_buckets(kinds, first_bytes=min(_FIRST_BYTES, most_bytes), most_bytes=most_bytes)
    return [Bucket([order[index] for index in bucket], specs, dtypes[order[bucket[0]]]) for bucket in buckets]
