"""Counts the bytes that torch's CPU allocator holds, in all threads and without cost.

    environment = {**os.environ, **counting(folder)}            # in the parent: compiles the counter, once a folder
    subprocess.run([sys.executable, "rank.py"], env=environment)

    memory = AllocatedMemory()                                  # in the child
    memory.mark(); step(); memory.peak()                        # the most bytes at one moment since the mark

c10's allocator calls two functions for each block. The counter takes their place (`LD_PRELOAD`), so it sees what no
dispatch mode sees: scratch of kernels, and blocks of a pipeline's threads. It needs g++.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

_SOURCE = Path(__file__).with_name("allocated.cpp")


def counting(folder: Path) -> dict[str, str]:
    """Return the environment in which a process counts; compile the counter into `folder` where it is not there."""
    library = folder / "liballocated.so"
    if not library.exists():
        subprocess.run(["g++", "-O2", "-shared", "-fPIC", "-o", library, _SOURCE], check=True)
    return {"LD_PRELOAD": f"{library} {os.environ.get('LD_PRELOAD', '')}".strip()}


class AllocatedMemory:
    """The counter of this process, which was started with the environment that `counting` returns."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)
        if not hasattr(self._library, "allocated_peak"):
            raise RuntimeError(
                "this process does not count: start it with the environment of allocated.counting(folder)"
            )
        self._library.allocated_peak.restype = self._library.allocated_held.restype = ctypes.c_size_t

    def mark(self) -> None:
        """Forget the peak so far."""
        self._library.allocated_mark()

    def peak(self) -> int:
        """Return the most bytes that were held at one moment since the mark."""
        return int(self._library.allocated_peak())

    def held(self) -> int:
        """Return the bytes that are held now."""
        return int(self._library.allocated_held())
