"""Answers a rank's questions about itself and its groups under SMP v1's names.

rank, size                the world
local_rank, local_size    this host
mp_*, pp_*, tp_*          the model-parallel group and its pipeline and tensor axes
dp_*, rdp_*               the ranks that hold the same part of the model
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from herringbone_parallel.core.grid import Grid


class RankContext(Protocol):
    """The part of an adaptor's state that rank numbers follow from."""

    @property
    def grid(self) -> Grid: ...
    @property
    def rank(self) -> int: ...
    @property
    def local_rank(self) -> int: ...
    @property
    def local_size(self) -> int: ...


class Ranks:
    """The numbers of a rank and the members of its groups.

    >>> from types import SimpleNamespace
    >>> context = SimpleNamespace(grid=Grid.of(4, pipeline=2), rank=2, local_rank=0, local_size=2)
    >>> ranks = Ranks(lambda: context)
    >>> ranks.pp_rank(), ranks.get_pp_group(), ranks.get_dp_group()
    (0, [2, 3], [0, 2])

    `context` is a function, because the state it returns exists only after `smp.init()`.
    """

    def __init__(self, context: Callable[[], RankContext]) -> None:
        self._context = context

    def rank(self) -> int:
        """Return this process's rank among all."""
        return self._context().rank

    def size(self) -> int:
        """Return the number of all ranks."""
        return self._context().grid.world_size

    def local_rank(self) -> int:
        """Return this process's rank on its host."""
        return self._context().local_rank

    def local_size(self) -> int:
        """Return the number of ranks on this host."""
        return self._context().local_size

    def pp_rank(self) -> int:
        """Return this rank's index in its pipeline: the partition it holds."""
        return self._context().grid.coordinates(self.rank())["P"]

    def pp_size(self) -> int:
        """Return the number of partitions."""
        return self._context().grid.pipeline

    def tp_rank(self) -> int:
        """Return the index on the tensor-parallel axis."""
        return self._context().grid.coordinates(self.rank())["T"]

    def tp_size(self) -> int:
        """Return the extent of the tensor-parallel axis."""
        return self._context().grid.tensor

    def mp_rank(self) -> int:
        """Return the index in the model-parallel group (pipeline and tensor axes together)."""
        return self.get_mp_group().index(self.rank())

    def mp_size(self) -> int:
        """Return the size of the model-parallel group."""
        return len(self.get_mp_group())

    def rdp_rank(self) -> int:
        """Return the index among the ranks that hold exactly the same parameters."""
        return self._context().grid.index("D", self.rank())

    def rdp_size(self) -> int:
        """Return the number of ranks that hold exactly the same parameters."""
        return self._context().grid.data

    def dp_rank(self) -> int:
        """Return the index among the ranks of the same partition."""
        return self.get_dp_group().index(self.rank())

    def dp_size(self) -> int:
        """Return the number of ranks that share this partition."""
        return len(self.get_dp_group())

    def get_mp_group(self) -> list[int]:
        """Return the global ranks of this rank's model-parallel group."""
        return list(self._context().grid.group("PT", self.rank()))

    def get_dp_group(self) -> list[int]:
        """Return the global ranks of the same partition."""
        return list(self._context().grid.group("DT", self.rank()))

    def get_pp_group(self) -> list[int]:
        """Return the global ranks of this rank's pipeline."""
        return list(self._context().grid.group("P", self.rank()))

    def get_tp_group(self) -> list[int]:
        """Return the global ranks along the tensor-parallel axis."""
        return list(self._context().grid.group("T", self.rank()))

    def get_rdp_group(self) -> list[int]:
        """Return the global ranks that hold exactly the same parameters."""
        return list(self._context().grid.group("D", self.rank()))

    def get_world_group(self) -> list[int]:
        """Return all global ranks."""
        return list(range(self.size()))
