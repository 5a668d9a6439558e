"""`python -m herringbone_entry`, also installed as `train`: the program that a container or a host starts."""

from __future__ import annotations

import os
import signal
from typing import NoReturn


def main() -> NoReturn:
    """Take part in the job that this host's files describe, and exit with its code."""
    # The first process of a container ignores a signal that it does not handle, and imports take a while.
    signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))
    from herringbone_entry import inherited
    from herringbone_entry.ranks import prewarm

    inherited.keep_descriptors(os.environ)
    waiting = prewarm.start(os.environ)
    from herringbone_entry.job import run

    # Nothing is left to tidy or to flush, and the interpreter's own farewell takes milliseconds.
    os._exit(run(os.environ, waiting))


if __name__ == "__main__":
    main()
