"""The element types that can be summed, and the arithmetic of 16-bit types.

16-bit floats are widened to fp32, added, and rounded to the nearest value, ties to even. The codes are those of the
wire and of the native core (`native/reduce.h`). `native/sums.c` does the same arithmetic with the same bits.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from herringbone_contract.errors import ParallelError

Array = npt.NDArray[Any]


class Element(IntEnum):
    """The type of a buffer's elements.

    >>> Element.named("bfloat16").size
    2
    """

    FLOAT32 = 1
    FLOAT16 = 2
    BFLOAT16 = 3
    FLOAT64 = 4
    INT32 = 5
    INT64 = 6
    UINT8 = 7

    @property
    def size(self) -> int:
        """The bytes of one element."""
        return self.stored.itemsize

    @property
    def stored(self) -> np.dtype[Any]:
        """The numpy type of the bytes; numpy has no bfloat16, so its bits are a `uint16`."""
        return _STORED[self]

    @property
    def summed(self) -> np.dtype[Any]:
        """The numpy type in which sums are computed: fp32 for 16-bit floats."""
        return np.dtype(np.float32) if self in (Element.FLOAT16, Element.BFLOAT16) else self.stored

    @property
    def is_float(self) -> bool:
        """True for floating-point types."""
        return self <= Element.FLOAT64

    @classmethod
    def named(cls, name: str) -> Element:
        """Return the type of a numpy or torch name, or of a `wire` setting: `fp16`, `bf16`. Raises `ParallelError`."""
        key = {"fp16": "FLOAT16", "bf16": "BFLOAT16", "fp32": "FLOAT32"}.get(name, name.upper())
        if key not in cls.__members__:
            known = ", ".join(member.name.lower() for member in cls)
            raise ParallelError(f"elements of type {name!r} cannot be summed; these can: {known}")
        return cls[key]


_STORED: dict[Element, np.dtype[Any]] = {
    Element.FLOAT32: np.dtype(np.float32),
    Element.FLOAT16: np.dtype(np.float16),
    Element.BFLOAT16: np.dtype(np.uint16),
    Element.FLOAT64: np.dtype(np.float64),
    Element.INT32: np.dtype(np.int32),
    Element.INT64: np.dtype(np.int64),
    Element.UINT8: np.dtype(np.uint8),
}


def widen(stored: Array, element: Element) -> Array:
    """Return the values in the type in which sums are computed. Pure.

    >>> widen(np.array([0x3F80], np.uint16), Element.BFLOAT16)
    array([1.], dtype=float32)
    """
    if element is Element.BFLOAT16:
        # A bfloat16 is the upper half of an fp32.
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(element.summed, copy=False)


def narrow(summed: Array, element: Element) -> Array:
    """Return sums in the stored type, rounded to the nearest value, ties to even; NaN stays NaN. Pure.

    >>> hex(narrow(np.array([1.0], np.float32), Element.BFLOAT16)[0])
    '0x3f80'
    """
    if element is Element.BFLOAT16:
        bits = summed.view(np.uint32)
        # Adding just under half of the last kept bit, or exactly half if that bit is odd, rounds ties to even.
        rounded = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
        # Rounding could carry a NaN's bits over into an infinity. A NaN keeps its upper half, with the quiet bit set.
        return np.where(np.isnan(summed), (bits >> 16).astype(np.uint16) | 0x40, rounded).astype(np.uint16)
    with np.errstate(over="ignore"):
        return summed.astype(element.stored, copy=False)


def total(sources: list[tuple[Array, Element]], divisor: float) -> Array:
    """Return the sum of the members' values, in the order of members, divided by `divisor`. Pure.

    >>> total([(np.float32([1, 2]), Element.FLOAT32), (np.float32([3, 4]), Element.FLOAT32)], 2)
    array([2., 3.], dtype=float32)
    """
    first, *others = sources
    # The fixed order gives the same bits on every rank and in every run: floating-point addition is not associative.
    # Infinities of opposite signs make a NaN without a warning, as in a training in one process.
    with np.errstate(all="ignore"):
        result = widen(*first).copy()
        for other in others:
            result += widen(*other)
        if divisor != 1:
            result /= result.dtype.type(divisor)
    return result
