"""Sums over all ranks for scripts that use the engine directly.

from herringbone_parallel.reduce.api import Settings, join

with join(Settings.from_environment()) as engine:
    engine.all_reduce(gradients, op="average").wait()
"""

from herringbone_parallel.reduce.collectives import agree, all_gather, barrier, broadcast
from herringbone_parallel.reduce.engine import Engine, Handle, Stats
from herringbone_parallel.reduce.join.settings import Settings
from herringbone_parallel.reduce.joining import join
from herringbone_parallel.reduce.subsets import join_subset

__all__ = [
    "Engine",
    "Handle",
    "Settings",
    "Stats",
    "agree",
    "all_gather",
    "barrier",
    "broadcast",
    "join",
    "join_subset",
]
