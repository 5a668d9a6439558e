"""The random numbers of a process that every framework has: Python's, and NumPy's where the script has imported it."""

from __future__ import annotations

import _random
import ctypes
import random
import sys
from collections.abc import Callable
from typing import Any

import msgspec

# mt19937.h: uint32_t key[624]; int pos.
_MT19937 = 625 * 4
_HEAD = object.__basicsize__


class ProcessState(msgspec.Struct, frozen=True):
    """A snapshot. `numpy` is None where NumPy has not been imported: then nobody has drawn from it."""

    python: tuple[int, list[int], float | None]
    numpy: tuple[bytes, int, int, float] | None


def remember() -> Callable[[], tuple[Any, Any]]:
    """Return the function that returns the present state's members: after each step there is time for a copy alone."""
    (version, numbers, gauss), module = _python(), sys.modules.get("numpy")
    numpy = None if module is None else _numpy(module)

    def state() -> tuple[Any, Any]:
        shown = None if numpy is None else (numpy[1].tobytes(), int(numpy[2]), int(numpy[3]), float(numpy[4]))
        return (version, list(numbers), gauss), shown

    return state


def restore(state: ProcessState) -> None:
    """Go on with the numbers that followed when the snapshot was taken."""
    set_python(random, state.python)
    if state.numpy is not None:
        import numpy as np

        keys, position, has_gauss, cached = state.numpy
        np.random.set_state(("MT19937", np.frombuffer(keys, dtype=np.uint32), position, has_gauss, cached))


def set_python(generator: Any, state: Any) -> None:
    """Set the state of a generator of Python's, whose numbers a message has as a list."""
    version, numbers, gauss = state
    generator.setstate((version, tuple(numbers), gauss))


def seed(value: int) -> None:
    """Seed both."""
    random.seed(value)
    if (module := sys.modules.get("numpy")) is not None:
        module.random.seed(value & 0xFFFFFFFF)


class _Kept:
    """A state that takes long to read, because it becomes a list of numbers: read again only after a draw.

    A draw changes the memory of the generator. The view of that is made once: a call of ctypes takes longer.
    """

    def __init__(self) -> None:
        self._owner: Any = None
        self._memory: Any = None
        self._key: Any = None
        self._state: Any = None

    def view(self, owner: Any, place: Callable[[], int], size: int) -> None:
        """Look at the memory of a generator from now on."""
        if owner is not self._owner:
            self._owner, self._memory = owner, memoryview((ctypes.c_ubyte * size).from_address(place()))

    def get(self, beside: Any, read: Callable[[], Any], is_whole: Callable[[Any], bool]) -> Any:
        """Return what `read` does; the memory and `beside` are all of the state if `is_whole(state)`."""
        key = self._memory.tobytes(), beside
        if key != self._key:
            self._state = read()
            self._key = key if is_whole(self._state) else None
        return self._state


_PYTHON, _NUMPY = _Kept(), _Kept()


def _python() -> Any:
    """Return the state of Python's generator; 10 us are spent only after a draw."""
    # The functions of `random` are methods of this object. Behind its head are the numbers themselves.
    own: Any = random._inst
    _PYTHON.view(own, lambda: id(own) + _HEAD, _random.Random.__basicsize__ - _HEAD)
    return _PYTHON.get(own.gauss_next, random.getstate, lambda _: True)


def _numpy(module: Any) -> Any:
    """Return the state of NumPy's generator; 30 us are spent only after a draw."""
    # Before NumPy 1.24 there is no get_bit_generator.
    generator = module.random.mtrand._rand._bit_generator
    if type(generator) is not module.random.MT19937:
        return module.random.get_state()
    _NUMPY.view(generator, lambda: generator.ctypes.state_address, _MT19937)
    # A second normal number that is kept can go without a change of the memory.
    return _NUMPY.get(None, module.random.get_state, lambda state: not state[3])
