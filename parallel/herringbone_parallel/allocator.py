"""Keeps the C library from giving a step's memory back to the system only to ask for it again in the next step.

glibc gives each thread an arena of its own and trims what is freed at its top; a pipelined step frees all activations
at its end, so that every step pays page faults for all of them. One arena, no trimming and no mmap for tensors below
32 MiB ended that: 4,500 faults a step became 60 (docs/decisions/005). Other C libraries are left as they are.
"""

from __future__ import annotations

import ctypes
import sys

# From malloc.h.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -2, -3, -8
_LARGEST_MMAP_THRESHOLD = 32 << 20
_NEVER_TRIM = (1 << 31) - 1
_GROWTH = 64 << 20


def keep_pages() -> bool:
    """Set glibc's allocator up for steps that repeat; says whether it did."""
    if sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    wishes = (
        (_M_ARENA_MAX, 1),
        (_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD),
        (_M_TRIM_THRESHOLD, _NEVER_TRIM),
        (_M_TOP_PAD, _GROWTH),
    )
    return all(mallopt(option, value) == 1 for option, value in wishes)
