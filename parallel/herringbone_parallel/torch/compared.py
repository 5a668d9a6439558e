"""Report what a prediction of this script is compared with: the seconds of its steps, and its peak of memory.

from herringbone_parallel.torch.compared import report; report()        # once, after `import torch`
"""

from __future__ import annotations

import atexit
import os
import resource
import sys
from pathlib import Path

import torch

from herringbone_contract.events import emit
from herringbone_parallel.torch.step_hook import count_steps

# The unit of `ru_maxrss`.
_UNIT = 1 if sys.platform == "darwin" else 1024


def report() -> None:
    """Count the steps of optimizers from now on, and send the peak of memory when this process ends."""
    count_steps()
    atexit.register(_send_peak, os.getpid(), resident_bytes())


def peak_bytes(before: int) -> tuple[int, str]:
    """Return the most bytes that this process held for training, and where: "cuda" or "cpu".

    On a GPU, torch's allocator counts them. Elsewhere they are the growth of the process above `before` bytes.
    """
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return torch.cuda.max_memory_allocated(), "cuda"
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _UNIT
    return max(0, most - before), "cpu"


def resident_bytes() -> int:
    """Return the bytes of memory that this process holds now; 0 where the system does not tell."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * resource.getpagesize()


def _send_peak(pid: int, before: int) -> None:
    # A forked child, such as a loader's worker, holds other memory.
    if os.getpid() == pid:
        peak, device = peak_bytes(before)
        emit.emit("memory", peak=peak, device=device)
