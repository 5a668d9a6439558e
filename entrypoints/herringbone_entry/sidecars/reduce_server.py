"""The first lines of a helper's server: tie it to its supervisor, then run the library's own program."""

from __future__ import annotations

import os
import runpy
import signal
import sys

from herringbone_contract.constants import REDUCE_SERVER_MODULE

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Run the server as `__main__`."""
    die_with(os.getppid())
    runpy.run_module(REDUCE_SERVER_MODULE, run_name="__main__", alter_sys=True)


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends.

    Linux only; elsewhere the process may outlive a supervisor that was killed.
    """
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # A parent that ended before the call above sends no signal; the process then has another parent already.
    if os.getppid() != parent:
        os._exit(1)
