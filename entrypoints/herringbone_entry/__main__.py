"""`python -m herringbone_entry`, also installed as `train`: the program that starts on each host or container."""

from __future__ import annotations

import gc
import os
import signal
from typing import NoReturn


def main() -> NoReturn:
    """Take part in the job that this host's files describe, and exit with its code."""
    # The first process of a container ignores signals that it does not handle, and the imports below take a while.
    signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))
    from herringbone_contract.constants import HostVariable
    from herringbone_entry import inherited
    from herringbone_entry.ranks import prewarm

    inherited.keep_descriptors(os.environ)
    # Before our own heavy imports, so that both processes import at the same time.
    if os.environ.get(HostVariable.STANDBY) == "1":
        # Most hosts are none, and never need this module.
        from herringbone_entry.ranks.ahead import standby

        prewarmed = standby.start(os.environ)
    else:
        prewarmed = prewarm.start(os.environ)
    # Modules stay for good, so looking for garbage among them would only delay the user's first line.
    gc.disable()
    from herringbone_entry.job import run

    gc.freeze()
    gc.enable()
    # `run` has flushed and removed everything, and the interpreter's own shutdown takes milliseconds.
    os._exit(run(os.environ, prewarmed))


if __name__ == "__main__":
    main()
