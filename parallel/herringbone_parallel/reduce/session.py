"""The engine of this process, which all libraries share: the first one joins, the last one closes it."""

from __future__ import annotations

import atexit
import os
import threading

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.sums.links import Cost
from herringbone_parallel.reduce.engine import Engine
from herringbone_parallel.reduce.join.settings import Settings
from herringbone_parallel.reduce.joining import join
from herringbone_parallel.reduce.probing import measure

# Guards all members below. `current` reads `_engine` without it: reading one reference is atomic.
_lock = threading.Lock()
_settings: Settings | None = None
_engine: Engine | None = None
_cost: Cost | None = None
_holders = 0


def enter() -> Engine:
    """Join the other ranks, unless this process has, and return its engine; `leave` undoes it.

        engine = enter()
        engine.all_reduce(gradients, op="average").wait()
        leave()

    A rank has one engine, because all its sums need one order. Only the first call reads the environment, because the
    job's token may come through a pipe. Raises `ParallelError` outside a launched rank, and if ranks do not find each
    other.
    """
    global _settings, _engine, _holders
    if "HERRINGBONE_MEASURING" in os.environ:
        # Nobody else is there to join. The backend `smddp` of a measured script does not come here.
        raise ParallelError(
            "hvd.init() in a measured script: Horovod's sums are not predicted. Plan without measuring, or train with"
            " DistributedDataParallel"
        )
    with _lock:
        if _engine is None:
            _settings = _settings or Settings.from_environment()
            _engine = join(_settings)
            atexit.register(_end)
        _holders += 1
        return _engine


def current() -> Engine:
    """Return the engine of this process; raises `ParallelError` before `enter`."""
    if _engine is None:
        raise ParallelError(
            "this rank has not joined the others yet: call init_process_group('smddp'), or hvd.init(), first"
        )
    return _engine


def settings() -> Settings:
    """Return the settings with which this process joined; the job's token cannot be read a second time."""
    current()
    assert _settings is not None
    return _settings


def cost() -> Cost:
    """Return the cost of sums between these ranks; all ranks make the first call, which measures, together."""
    global _cost
    if _cost is None:
        _cost = measure(current())
    return _cost


def leave() -> None:
    """Return the engine; the last holder closes it."""
    global _holders
    with _lock:
        _holders = max(0, _holders - 1)
    if _holders == 0:
        _end()


def _end() -> None:
    """Close the engine; also runs at the end of a script that has not left."""
    global _engine, _cost, _holders
    # Take the engine under the lock, close it without: closing waits for other processes.
    with _lock:
        engine, _engine, _cost, _holders = _engine, None, None, 0
    if engine is not None:
        atexit.unregister(_end)
        engine.close()
