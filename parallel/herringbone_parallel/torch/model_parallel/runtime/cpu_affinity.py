"""Hand the core of a thread that goes to sleep to the thread that it wakes.

A microbatch that hands on the run token sleeps a moment later, so its core becomes free. The kernel cannot know that.
It looks for an idle core, finds none when every core has its rank, and may queue the woken thread behind another rank
for a time slice of some milliseconds. Decision 011 has the measurements.
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


class CoreHandOver(NamedTuple):
    """The three system calls of a hand-over.

    `current_core` returns the core of the calling thread. `cores_of` returns the cores that a thread may use, and
    `set_cores` changes them. Threads are the kernel's thread ids; 0 is the calling thread.
    """

    current_core: Callable[[], int]
    cores_of: Callable[[int], Cores]
    set_cores: Callable[[int, Cores], None]

    def give(self, thread: int) -> Cores:
        """Bind a sleeping thread to the caller's core, and return the cores that the thread takes back."""
        cores = self.cores_of(thread)
        self.set_cores(thread, frozenset((self.current_core(),)))
        return cores

    def take_back(self, cores: Cores) -> None:
        """Unbind the calling thread, which is its first action after it woke."""
        self.set_cores(0, cores)


def core_hand_over(local_ranks: int, threads: int, device: str) -> CoreHandOver | None:
    """Return the hand-over for this host, or None where the kernel's own choice is at least as good.

        pool.hand_over = core_hand_over(local_ranks=8, threads=1, device="cpu")

    `local_ranks` is the number of ranks on this host, `threads` the number of cores that each rank computes with,
    `device` the type of the device that computes. The result is None where a core is idle for a woken thread, outside
    Linux, and on devices other than the CPU: there nobody has measured a gain.
    """
    if sys.platform != "linux" or device != "cpu" or local_ranks * threads < len(os.sched_getaffinity(0)):
        return None
    return _system_calls()


@functools.cache
def _system_calls() -> CoreHandOver | None:
    # Cached because every step asks, and looking up a symbol of the C library takes longer than a hand-over.
    current_core = getattr(ctypes.CDLL(None), "sched_getcpu", None)
    return None if current_core is None else CoreHandOver(current_core, _cores_of, _set_cores)


def _cores_of(thread: int) -> Cores:
    return frozenset(os.sched_getaffinity(thread))


def _set_cores(thread: int, cores: Cores) -> None:
    # A sandbox may forbid the call, and a container's set of cores may have changed. The kernel's choice is then kept:
    # a hand-over saves time, and no result depends on it.
    with suppress(OSError):
        os.sched_setaffinity(thread, cores)
