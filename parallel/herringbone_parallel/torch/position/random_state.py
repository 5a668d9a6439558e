"""The state of all random numbers of a process: Python's, NumPy's, torch's, and those of its devices."""

from __future__ import annotations

import _random
import ctypes
import hashlib
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import torch

# mt19937.h: uint32_t key[624]; int pos.
_MT19937 = 625 * 4


class RandomState(msgspec.Struct, frozen=True):
    """A snapshot. `numpy` is None where NumPy has not been imported: then nobody has drawn from it."""

    python: tuple[int, list[int], float | None]
    numpy: tuple[bytes, int, int, float] | None
    torch: bytes
    devices: list[bytes]


def take() -> RandomState:
    """Return the present state; nothing is drawn."""
    return remember()()


def remember() -> Callable[[], RandomState]:
    """Return the function that returns the present state: after each step there is time for a copy alone (2 us)."""
    (version, numbers, gauss), host = _python(), torch.get_rng_state()
    module: Any = sys.modules.get("numpy")
    cuda: Any = torch.cuda
    numpy = None if module is None else _numpy(module)
    # Not `get_rng_state_all`, which looks at each device's properties first.
    devices = [one.get_state() for one in cuda.default_generators] if cuda.is_initialized() else []

    def state() -> RandomState:
        shown = None if numpy is None else (numpy[1].tobytes(), int(numpy[2]), int(numpy[3]), float(numpy[4]))
        return RandomState((version, list(numbers), gauss), shown, to_bytes(host), [to_bytes(one) for one in devices])

    return state


def restore(state: RandomState) -> None:
    """Go on with the numbers that followed when the snapshot was taken."""
    version, numbers, gauss = state.python
    random.setstate((version, tuple(numbers), gauss))
    if state.numpy is not None:
        import numpy as np

        keys, position, has_gauss, cached = state.numpy
        np.random.set_state(("MT19937", np.frombuffer(keys, dtype=np.uint32), position, has_gauss, cached))
    torch.set_rng_state(to_tensor(state.torch))
    if state.devices and len(state.devices) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([to_tensor(device) for device in state.devices])


def go_on(state: RandomState, *others: int) -> None:
    """Restore a snapshot; with `others`, such as a rank that nobody had, seed everything by it and by them."""
    if not others:
        restore(state)
        return
    # None of the numbers that were drawn comes again.
    seed(state.torch, *others)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(torch.initial_seed())


class _Kept:
    """A state that takes long to read, because it becomes a list of numbers: read again only after a draw."""

    def __init__(self) -> None:
        self._key: Any = None
        self._state: Any = None

    def get(self, key: Any, read: Callable[[], Any], is_whole: Callable[[Any], bool]) -> Any:
        """Return what `read` does; the key has the generator's memory, and all of its state if `is_whole(state)`."""
        if key is None or key != self._key:
            self._state = read()
            self._key = key if is_whole(self._state) else None
        return self._state


_PYTHON, _NUMPY = _Kept(), _Kept()
_HEAD = object.__basicsize__


def _python() -> Any:
    """Return the state of Python's generator; 10 us are spent only after a draw."""
    # The functions of `random` are methods of this object. Behind its head are the numbers themselves.
    own: Any = random._inst
    memory = ctypes.string_at(id(own) + _HEAD, _random.Random.__basicsize__ - _HEAD)
    return _PYTHON.get((memory, own.gauss_next), random.getstate, lambda _: True)


def _numpy(module: Any) -> Any:
    """Return the state of NumPy's generator; 30 us are spent only after a draw."""
    generator = module.random.get_bit_generator()
    key = None
    if type(generator) is module.random.MT19937:
        key = ctypes.string_at(generator.ctypes.state_address, _MT19937)
    # A second normal number that is kept can go without a change of the memory.
    return _NUMPY.get(key, module.random.get_state, lambda state: not state[3])


@contextmanager
def under(state: RandomState) -> Iterator[None]:
    """Draw the numbers that followed a snapshot inside; outside, nothing was drawn."""
    outside = take()
    restore(state)
    try:
        yield
    finally:
        restore(outside)


def seed(*numbers: int | bytes) -> None:
    """Seed everything from some numbers; equal numbers give equal draws on every machine.

    >>> seed(7, 0, 12); first = random.random(); seed(7, 0, 12); first == random.random()
    True
    """
    digest = hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest()
    value = int.from_bytes(digest, "little")
    random.seed(value)
    # Not `torch.manual_seed` in workers of a loader: it also seeds devices, which they must not touch.
    torch.default_generator.manual_seed(value & (2**63 - 1))
    if (module := sys.modules.get("numpy")) is not None:
        module.random.seed(value & 0xFFFFFFFF)


def to_bytes(state: torch.Tensor) -> bytes:
    """Return the bytes of a generator's state."""
    return state.cpu().numpy().tobytes()


def to_tensor(content: bytes) -> torch.Tensor:
    """Return the state of a generator with these bytes."""
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)
