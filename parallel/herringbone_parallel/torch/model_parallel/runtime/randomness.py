"""Random numbers that do not depend on the schedule.

torch draws from one generator per device, in the order in which operations run. Here every microbatch has a stream for
the code that runs on all ranks, and every call has a seed. The seed is made of the step's seed, the microbatch, the
call's name and the number of earlier calls of that name. So dropout masks do not depend on which microbatch ran first,
and code that runs on every rank draws the same numbers on each.
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
    # Cached because every hand-over of the run token asks, and torch asks the driver.
    return torch.cuda.is_available()


def _generators() -> list[torch.Generator]:
    generators = [torch.default_generator]
    if _has_cuda():
        generators.append(torch.cuda.default_generators[torch.cuda.current_device()])
    return generators


def save_generators() -> Callable[[], None]:
    """Return a function that sets the generators back to their present state."""
    states = [(generator, generator.get_state()) for generator in _generators()]

    def restore() -> None:
        for generator, state in states:
            generator.set_state(state)

    return restore


def draw_seed() -> int:
    """Draw a step's seed from torch's generator: the same on all ranks whose scripts use the same seed."""
    return int(torch.randint(_SEEDS, (), dtype=torch.int64))


def seed_of(step_seed: int, *what: object) -> int:
    """Return the seed of one purpose in a step, the same in every process.

    >>> seed_of(1, 0, "layer", 1) == seed_of(1, 0, "layer", 1) != seed_of(1, 1, "layer", 1)
    True
    """
    # Not `hash`, which Python salts per process for strings.
    text = repr(what).encode()
    return (step_seed ^ (zlib.crc32(text) << 31) ^ zlib.adler32(text)) % _SEEDS


def seed_generators(seed: int) -> None:
    """Let the generators continue from a seed."""
    for generator in _generators():
        generator.manual_seed(seed)


def reseed(seed: int) -> Callable[[], None]:
    """Let the generators continue from a seed, and return a function that sets them back to their present state."""
    # Saved first: seeding overwrites the state.
    restore = save_generators()
    seed_generators(seed)
    return restore


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw from `seed` inside the `with` block, and continue afterwards as if nothing had been drawn."""
    restore = reseed(seed)
    try:
        yield
    finally:
        restore()
