"""A rank as a process of its own, for tests that kill, stop or delay it; `test_faults.py` starts it.

Usage: python -m tests.parallel.reduce.ranks WORK, with a rank's environment. Prints lines of JSON: {"at": ...}.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import numpy as np

from herringbone_contract.errors import ParallelError
from herringbone_parallel.reduce.collectives import barrier
from herringbone_parallel.reduce.engine import Engine
from herringbone_parallel.reduce.join.settings import Settings
from herringbone_parallel.reduce.joining import join


def report(**event: object) -> None:
    """Print an event for the test."""
    print(json.dumps(event), flush=True)


def rounds(engine: Engine) -> None:
    """Sum until an error ends it."""
    data = np.ones(100_000, np.float32)
    for number in range(1_000_000):
        data[:] = 1
        engine.all_reduce(data).wait(60)
        assert (data == engine.size).all()
        if number == 3:
            report(at="running")


def busy(engine: Engine) -> None:
    """Compute for longer than a process may be silent; the I/O thread answers meanwhile."""
    end = time.monotonic() + 4.5
    while time.monotonic() < end:
        sum(range(10_000))
    barrier(engine, 30)
    report(at="done")


WORKS: dict[str, Callable[[Engine], None]] = {"rounds": rounds, "busy": busy}


def main() -> None:
    engine = join(Settings.from_environment())
    report(at="joined")
    try:
        WORKS[sys.argv[1]](engine)
    except ParallelError as error:
        report(at="failed", message=str(error), again=engine.failure, time=time.time())
        try:
            engine.all_reduce(np.ones(1, np.float32))
        except ParallelError as second:
            report(at="refused", message=str(second))
    finally:
        engine.close()


if __name__ == "__main__":
    main()
