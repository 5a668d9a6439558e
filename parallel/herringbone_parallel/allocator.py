"""Stops glibc from returning a step's memory to the system, because the next step needs it again.

glibc gives each thread an arena of its own and trims memory that is freed at its top. A pipelined step frees all
activations at its end, so every step would pay page faults for all of them. One arena, no trimming, and no mmap for
tensors below 32 MiB reduced 4,500 faults per step to 60 (docs/decisions/005). Other C libraries stay as they are.
"""

from __future__ import annotations

import ctypes
import sys

# From glibc's malloc.h; ctypes cannot see macros.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -2, -3, -8
_LARGEST_MMAP_THRESHOLD = 32 << 20
_NEVER_TRIM = (1 << 31) - 1
_GROWTH = 64 << 20


def keep_pages() -> bool:
    """Configure glibc's allocator for steps that repeat; return True if it accepted all options."""
    if sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        # Another C library, such as musl, has no `mallopt`.
        return False
    options = (
        (_M_ARENA_MAX, 1),
        (_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD),
        (_M_TRIM_THRESHOLD, _NEVER_TRIM),
        # Each growth of the arena is a system call, so grow in large pieces.
        (_M_TOP_PAD, _GROWTH),
    )
    return all(mallopt(option, value) == 1 for option, value in options)
