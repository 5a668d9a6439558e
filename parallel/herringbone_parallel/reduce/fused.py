"""Gradients that travel together: one flat buffer each, in which every gradient has its place.

    buckets = cut(specs, dtypes, order=[2, 1, 0], cost=cost)
    flat = buckets[0].fill(gradients)           # summed in place by the engine
    buckets[0].pieces(flat)                     # its parts, in the gradients' shapes

Gradients are numpy arrays here, which share their memory with a framework's tensors where that framework can.
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

# TensorFlow takes an array over without a copy when it starts at a multiple of this.
_ALIGN_BYTES = 64


def _references(arrays: Sequence[Array]) -> list[int]:
    return [sys.getrefcount(array) for array in arrays]


# What that says of an array that is in a list and nowhere else; it is not the same in every release of Python.
_FREE = _references([np.zeros(0)])[0]


class Spec(NamedTuple):
    """What ranks must agree on of a gradient: its variable's name, the type of its elements, its shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class Bucket:
    """Some of the gradients, by their numbers, all of one type, and the buffers they travel in."""

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
        """Copy this bucket's gradients, given in the order of `members`, into a buffer that nobody else uses."""
        flat = self._buffer()
        for gradient, offset, count in zip(gradients, self._offsets, self._counts, strict=True):
            flat[offset : offset + count] = gradient.reshape(-1)
        return flat

    def pieces(self, flat: Array) -> list[Array]:
        """Return each gradient's part of the buffer, in its shape; the buffer lives on in them."""
        return [
            flat[offset : offset + count].reshape(shape)
            for offset, count, shape in zip(self._offsets, self._counts, self._shapes, strict=True)
        ]

    def _buffer(self) -> Array:
        """Return a buffer of zeros or of old sums: fresh memory costs as much as a copy, so it is used again.

        A piece that the framework still holds counts as a reference to the memory it lies in. The gaps between
        gradients stay zero for ever.
        """
        for owned, references in zip(self._owned, _references(self._owned), strict=True):
            if references == _FREE:
                return self._aligned(owned)
        self._owned.append(np.zeros(self.count * self.dtype.itemsize + _ALIGN_BYTES, np.uint8))
        return self._aligned(self._owned[-1])

    @property
    def allocated_bytes(self) -> int:
        """What this bucket's buffers take: two of them as a rule, as a framework lets go of the last sums late."""
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

    Sizes follow from what sums cost, unless `most_bytes` says them. How long the backward takes is not known when a
    function is traced; it is taken to be as long as the sums.
    """
    if not order:
        return []
    sizes = [int(np.prod(specs[member].shape, dtype=np.int64)) * dtypes[member].itemsize for member in order]
    kinds = [(specs[member].dtype, size) for member, size in zip(order, sizes, strict=True)]
    if most_bytes is None:
        ready_s = final_times(sizes, backward_s=cost.seconds(sum(sizes)))
        found = plan_buckets(kinds, ready_s=ready_s, cost=cost)
    else:
        found = cut_buckets(kinds, first_bytes=min(_FIRST_BYTES, most_bytes), most_bytes=most_bytes)
    return [Bucket([order[place] for place in bucket], specs, dtypes[order[bucket[0]]]) for bucket in found]


# Where the user says how large: small, so that the network has something to do early.
_FIRST_BYTES = 1 << 20
