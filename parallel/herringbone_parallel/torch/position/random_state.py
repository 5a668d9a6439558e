"""The state of all random numbers of a process: Python's, NumPy's, torch's, and those of its devices."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from herringbone_parallel.position import random_numbers
from herringbone_parallel.position.random_numbers import ProcessState


class RandomState(ProcessState, frozen=True):
    """A snapshot."""

    torch: bytes
    devices: list[bytes]


def take() -> RandomState:
    """Return the present state; nothing is drawn."""
    return remember()()


def remember() -> Callable[[], RandomState]:
    """Return the function that returns the present state: after each step there is time for a copy alone (2 us)."""
    process, host = random_numbers.remember(), torch.default_generator.get_state()
    cuda: Any = torch.cuda
    # Not `get_rng_state_all`, which looks at each device's properties first.
    devices = [one.get_state() for one in cuda.default_generators] if cuda.is_initialized() else []
    return lambda: RandomState(*process(), to_bytes(host), [to_bytes(one) for one in devices])


def restore(state: RandomState) -> None:
    """Go on with the numbers that followed when the snapshot was taken."""
    random_numbers.restore(state)
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

    >>> seed(7, 0, 12); first = torch.rand(1); seed(7, 0, 12); first == torch.rand(1)
    tensor([True])
    """
    digest = hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest()
    value = int.from_bytes(digest, "little")
    random_numbers.seed(value)
    # Not `torch.manual_seed` in workers of a loader: it also seeds devices, which they must not touch.
    torch.default_generator.manual_seed(value & (2**63 - 1))


def to_bytes(state: torch.Tensor) -> bytes:
    """Return the bytes of a generator's state."""
    return state.cpu().numpy().tobytes()


def to_tensor(content: bytes) -> torch.Tensor:
    """Return the state of a generator with these bytes."""
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


# A small tensor as a message carries it: the type, the shape and the bytes.
Packed = tuple[str, list[int], bytes]


def packed(tensor: torch.Tensor) -> Packed:
    """Return the message of a tensor.

    >>> unpacked(packed(torch.ones(2, 1)))
    tensor([[1.],
            [1.]])
    """
    flat = tensor.detach().contiguous().reshape(-1)
    content = to_bytes(flat.view(torch.uint8)) if flat.numel() else b""
    return str(tensor.dtype).removeprefix("torch."), list(tensor.shape), content


def unpacked(message: Packed) -> torch.Tensor:
    """Return the tensor of a message, on the CPU."""
    name, shape, content = message
    dtype = getattr(torch, name)
    return (torch.frombuffer(bytearray(content), dtype=dtype) if content else torch.empty(0, dtype=dtype)).reshape(
        shape
    )
