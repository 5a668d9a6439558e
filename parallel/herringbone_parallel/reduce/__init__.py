"""Sums over all ranks that move half the bytes: buffers are cut over servers, each of which adds up its part.

    from herringbone_parallel.reduce import Settings, join

    with join(Settings.from_environment()) as engine:
        engine.all_reduce(gradients, op="average").wait()

No framework in here; `herringbone_parallel.torch` and its like bring theirs.
"""

from herringbone_parallel.reduce.collectives import agree, all_gather, barrier, broadcast
from herringbone_parallel.reduce.engine import Engine, Handle, Stats
from herringbone_parallel.reduce.joining import join
from herringbone_parallel.reduce.part import join_part
from herringbone_parallel.reduce.settings import Settings

__all__ = ["Engine", "Handle", "Settings", "Stats", "agree", "all_gather", "barrier", "broadcast", "join", "join_part"]
