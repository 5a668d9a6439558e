"""Where a woken thread begins: on the core of the one that wakes it, when every core has its rank.

A thread that hands the baton on sleeps a moment later, and its core is free. The kernel does not know that: it looks
for an idle core, finds none, and may queue the woken thread behind another rank, for a slice of some milliseconds.
See docs/decisions/011-wake-on-the-predecessors-core.md.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

Cores = frozenset[int]


class Placing(NamedTuple):
    """What it takes: `current` tells the core of the calling thread, `allow` bounds a thread (0: the calling one)."""

    current: Callable[[], int]
    allowed: Callable[[], Cores]
    allow: Callable[[int, Cores], None]

    def call_over(self, thread: int) -> None:
        """Have a sleeping thread wake on this core; it calls `free` first of all, with the cores it had."""
        self.allow(thread, frozenset((self.current(),)))

    def free(self, cores: Cores) -> None:
        """Let the calling thread run wherever it could."""
        self.allow(0, cores)


def placing_of(ranks_here: int, threads: int) -> Placing | None:
    """Return what to do about it; None where a core is free for a woken thread, or the system has no such call (Linux).

    `ranks_here` is the number of ranks of this host, `threads` how many cores each of them computes with.
    """
    if sys.platform != "linux" or ranks_here * threads < len(os.sched_getaffinity(0)):
        return None
    return _placing()


@functools.cache
def _placing() -> Placing | None:
    # Once per process: the library is looked up, and each step asks.
    current = getattr(ctypes.CDLL(None), "sched_getcpu", None)
    return None if current is None else Placing(current, lambda: frozenset(os.sched_getaffinity(0)), _allow)


def _allow(thread: int, cores: Cores) -> None:
    # A sandbox may forbid it, and a set of cores may have changed meanwhile: then the kernel's choice stands.
    with suppress(OSError):
        os.sched_setaffinity(thread, cores)
