"""Random numbers that do not depend on the schedule.

torch draws from one generator per device, whoever comes first. Here every microbatch has a stream of its own for the
code that runs on all ranks, and every call a seed of its own, made of the step's seed, the microbatch, the call's name
and how many of that name were before it. So a seed gives the same dropout masks whichever microbatch ran first, and
code that runs on every rank draws the same numbers on each.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

_SEEDS = 2**63 - 1


@functools.cache
def _has_cuda() -> bool:
    return torch.cuda.is_available()


def _generators() -> list[torch.Generator]:
    found = [torch.default_generator]
    if _has_cuda():
        found.append(torch.cuda.default_generators[torch.cuda.current_device()])
    return found


def keep() -> Callable[[], None]:
    """Return a function that puts the generators back to where they are now."""
    states = [(generator, generator.get_state()) for generator in _generators()]

    def restore() -> None:
        for generator, state in states:
            generator.set_state(state)

    return restore


def draw_seed() -> int:
    """Draw a step's seed from torch's generator: the same on every rank whose script seeded it alike."""
    return int(torch.randint(_SEEDS, (), dtype=torch.int64))


def seed_of(step_seed: int, *what: object) -> int:
    """Return the seed of something in a step, the same in every process.

    >>> seed_of(1, 0, "layer", 1) == seed_of(1, 0, "layer", 1) != seed_of(1, 1, "layer", 1)
    True
    """
    text = repr(what).encode()
    return (step_seed ^ (zlib.crc32(text) << 31) ^ zlib.adler32(text)) % _SEEDS


def start_stream(seed: int) -> None:
    """Let the generators go on from a seed."""
    for generator in _generators():
        generator.manual_seed(seed)


def branch(seed: int) -> Callable[[], None]:
    """Let the generators go on from a seed, and return a function that puts them back to where they are now."""
    restore = keep()
    start_stream(seed)
    return restore


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw from a seed of its own inside the `with` block, and go on afterwards as if nothing had been drawn."""
    restore = branch(seed)
    try:
        yield
    finally:
        restore()
