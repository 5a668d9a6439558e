"""The parts of a training, each with its arrays and values for a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec
import numpy as np

from herringbone_contract.errors import ParallelError
from herringbone_parallel.position import random_numbers
from herringbone_parallel.position.checkpoint import dtype_of
from herringbone_parallel.position.random_numbers import ProcessState
from herringbone_parallel.position.samples import Order

Array = np.ndarray[Any, Any]
# Return some numbers that nobody has drawn, at most 8.
Fresh = Callable[[int], Array]


class Kept(NamedTuple):
    """The content of a checkpoint for one part."""

    arrays: dict[str, Array]
    values: Any


class Part:
    """A part of a training."""

    def arrays(self) -> dict[str, Array]:
        """Return the arrays that are equal on all ranks."""
        return {}

    def own(self) -> dict[str, Array]:
        """Return the arrays that may differ."""
        return {}

    def values(self) -> Any:
        """Return numbers and texts."""
        return None

    def put(self, kept: Kept) -> None:
        """Go on with what a checkpoint has. Raises `ParallelError` where that does not fit."""
        raise NotImplementedError

    def reseed(self, numbers: Fresh) -> None:
        """Draw from here on what nobody has drawn, on other ranks than those of the checkpoint."""


class Variable(NamedTuple):
    """A variable of a framework; `is_shared` says that it is equal on all ranks."""

    name: str
    shape: Sequence[int]
    dtype: str
    is_shared: bool
    read: Callable[[], Any]
    assign: Callable[[Any], Any]


class Variables(Part):
    """Variables in an order that does not change; `build` makes those that the first step would make."""

    def __init__(self, name: str, variables: Callable[[], list[Variable]], build: Callable[[], None]) -> None:
        self._name, self._variables, self._build = name, variables, build

    def arrays(self) -> dict[str, Array]:
        return self._values(True)

    def own(self) -> dict[str, Array]:
        return self._values(False)

    def put(self, kept: Kept) -> None:
        saved = [value for _, value in sorted(kept.arrays.items(), key=lambda item: int(item[0].split(":")[0]))]
        if len(self._variables()) != len(saved):
            self._build()
        variables = self._variables()
        shapes = [(tuple(value.shape), value.dtype.name) for value in saved]
        here = [(tuple(variable.shape), variable.dtype) for variable in variables]
        if shapes != here:
            differs = next((pair for pair in zip(shapes, here, strict=False) if pair[0] != pair[1]), "the number")
            raise ParallelError(
                f"the checkpoint's part {self._name!r} has {len(shapes)} variables, and {len(here)} here; first"
                f" difference: {differs}. Make the same model, optimizer and metrics, with all shapes known"
            )
        for variable, value in zip(variables, saved, strict=True):
            variable.assign(value)

    def _values(self, is_shared: bool) -> dict[str, Array]:
        return {
            f"{number}:{variable.name}": np.asarray(variable.read())
            for number, variable in enumerate(self._variables())
            if variable.is_shared == is_shared
        }


class Place(Part):
    """The place in the order of samples."""

    def __init__(self, order: Order) -> None:
        self._order = order

    def values(self) -> Any:
        return self._order.take()

    def put(self, kept: Kept) -> None:
        self._order.put(kept.values)


class Attributes(Part):
    """Numbers, texts and arrays that an object changes of itself during the training, but not those of `left_out`."""

    def __init__(self, name: str, changing: Any, left_out: Sequence[str] = ()) -> None:
        self._name, self._object, self._left_out = name, changing, left_out
        self._first = self._present()

    def values(self) -> Any:
        # What the script sets and the training does not change is the script's.
        changed = {name: value for name, value in self._present().items() if value != self._first.get(name)}
        if lost := [name for name, value in changed.items() if isinstance(value, type)]:
            raise ParallelError(
                f"the part {self._name!r} keeps a {changed[lost[0]].__qualname__} in {lost[0]!r}, which no checkpoint"
                " has: such a part keeps numbers, texts and arrays. Leave it out if it begins anew"
            )
        return changed

    def put(self, kept: Kept) -> None:
        for name, value in kept.values.items():
            setattr(self._object, name, unplain(value))

    def _present(self) -> dict[str, Any]:
        kept = {}
        for name, value in vars(self._object).items():
            if name not in self._left_out:
                try:
                    kept[name] = plain(value)
                except TypeError:
                    kept[name] = type(value)
        return kept


class Random(Part):
    """The random numbers of this process: Python's and NumPy's."""

    def values(self) -> Any:
        return msgspec.structs.asdict(ProcessState(*random_numbers.remember()()))

    def put(self, kept: Kept) -> None:
        random_numbers.restore(msgspec.convert(kept.values, ProcessState))

    def reseed(self, numbers: Fresh) -> None:
        random_numbers.seed(int(numbers(1)[0]))


def plain(value: Any) -> Any:
    """Return a value as numbers, texts, lists and dicts. Raises `TypeError` for one that is none of them."""
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {"pairs": [[plain(key), plain(one)] for key, one in value.items()]}
    if isinstance(value, np.ndarray):
        return {"array": packed(value)}
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(type(value).__qualname__)


def unplain(value: Any) -> Any:
    """Return the value that `plain` was given; of a tuple a list, of a scalar of NumPy's a number."""
    if isinstance(value, list):
        return [unplain(one) for one in value]
    if isinstance(value, dict):
        if "array" in value:
            return unpacked(value["array"]).copy()
        return {unplain(key): unplain(one) for key, one in value["pairs"]}
    return value


def packed(array: Array) -> list[Any]:
    """Return an array as a message carries it."""
    return [array.dtype.name, list(array.shape), np.ascontiguousarray(array).tobytes()]


def unpacked(message: list[Any]) -> Array:
    """Return the array of a message."""
    name, shape, data = message
    return np.frombuffer(data, dtype_of(name)).reshape(shape)


def drawn(seed: Any, count: int) -> Array:
    """Return up to 8 numbers of 63 bits that depend on the seed only.

    >>> drawn((1, "a"), 2).tolist() == drawn((1, "a"), 2).tolist() != drawn((2, "a"), 2).tolist()
    True
    """
    digest = blake2b(repr(seed).encode(), digest_size=8 * count).digest()
    return np.frombuffer(digest, np.int64) & (2**63 - 1)
