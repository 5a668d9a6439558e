"""Regions of a storage: the elements that a tensor has, and whether two tensors have one in common."""

from __future__ import annotations

import functools
import weakref
from typing import Any, NamedTuple

import torch


class Region(NamedTuple):
    """The elements of a storage that a tensor consists of."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Region:
        """Return the region of a strided tensor."""
        with torch._C.DisableTorchFunctionSubclass():
            return cls(tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))


class Write(NamedTuple):
    """The write that a value has missed: the serial of the value that it made, and where it was in the storage."""

    made: int
    region: Region


# A write whose result no single value has.
LOST = Write(-1, Region((), (), 0))


class Memory:
    """The living `Value`s in one storage of this rank; `of_script` if a tensor of the script is in it, too."""

    def __init__(self) -> None:
        self.values: list[weakref.ref[Any]] = []
        self.of_script = False

    def add(self, value: Any) -> None:
        """Add a value, and those that it is known to share memory with."""
        if value.memory is self:
            return
        other, value.memory = value.memory, self
        self.values.append(weakref.ref(value))
        if other is not None:
            self.of_script |= other.of_script
            for member in other.living():
                self.add(member)

    def living(self) -> list[Any]:
        """Return the values that somebody can still use."""
        return [value for value in (reference() for reference in self.values) if value is not None]


@functools.lru_cache(maxsize=4096)
def overlap(first: Region, second: Region) -> bool:
    """Say whether two regions of one storage have an element in common.

    >>> row, column = Region((4,), (1,), 4), Region((4,), (4,), 0)
    >>> overlap(row, column), overlap(row, Region((4,), (1,), 8))
    (True, False)
    """
    (low, high), (other_low, other_high) = _bounds(first), _bounds(second)
    if high < other_low or other_high < low:
        return False
    # Columns lie between each other, so the bounds do not tell: mark the elements of one, and look at the other.
    start = min(low, other_low)
    marks = torch.zeros(max(high, other_high) - start + 1, dtype=torch.bool, device="cpu")
    with torch.no_grad():
        marks.as_strided(first.shape, first.stride, first.offset - start).fill_(True)
        return bool(marks.as_strided(second.shape, second.stride, second.offset - start).any())


def _bounds(region: Region) -> tuple[int, int]:
    """Return the first and the last element; strides of torch are never negative."""
    if 0 in region.shape:
        return region.offset, region.offset - 1
    extent = sum((count - 1) * stride for count, stride in zip(region.shape, region.stride, strict=True))
    return region.offset, region.offset + extent
