"""The state of all random numbers of a process: Python's, NumPy's, torch's, and those of its devices."""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import torch


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
    """Return the function that returns the present state: after each step there is time for a copy alone (20 us)."""
    (version, numbers, gauss), host = random.getstate(), torch.get_rng_state()
    module: Any = sys.modules.get("numpy")
    cuda: Any = torch.cuda
    numpy = None if module is None else module.random.get_state()
    devices = cuda.get_rng_state_all() if cuda.is_available() and cuda.is_initialized() else []

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
