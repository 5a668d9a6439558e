"""Lays the global ranks out on the axes of a mesh: replicas, shards, contexts, pipeline and tensor parallelism."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from herringbone_contract.errors import ParallelError
from herringbone_contract.model_parallel import mesh
from herringbone_contract.model_parallel.mesh import Mesh

# The letters of SMP v1, and the axes of ours that each stands for. Neighbouring ranks share what costs most to
# exchange, so within D the contexts vary fastest.
AXES = {"D": "RSC", "P": "P", "T": "T"}


@dataclass(frozen=True)
class Grid:
    """Global ranks laid out over the axes R (replicate), S (shard), C (context), P (pipeline) and T (tensor).

    The right-most letter of `placement` varies fastest over the global rank, as in SMP v1, whose letter D (data)
    stands for R, S and C together: "DPT" is its `cluster` (the ranks of one pipeline are neighbours), "TPD" its
    `spread`.

    >>> Grid.of(8, pipeline=2).group("P", 0)
    (0, 1)
    >>> Grid.of(8, pipeline=2, placement="TPD").group("P", 0)
    (0, 4)
    >>> Grid.of(8, pipeline=2, shard=2).group("S", 0)
    (0, 2)

    Raises `ParallelError` for a placement that is no permutation.
    """

    mesh: Mesh
    placement: str = "DPT"

    @classmethod
    def of(cls, ranks: int, *, pipeline: int = 1, tensor: int = 1, shard: int = 1, placement: str = "DPT") -> Grid:
        """Return the grid of version 1's degrees. Raises `DistributionError` when they do not divide the ranks."""
        return cls(mesh.of_version1(ranks, pipeline=pipeline, tensor=tensor, shard=shard), placement)

    def __post_init__(self) -> None:
        if sorted(self.placement) != sorted(AXES):
            raise ParallelError(f"placement must be a permutation of the letters D, P, T, not {self.placement!r}")

    @property
    def world_size(self) -> int:
        return self.mesh.ranks

    @property
    def pipeline(self) -> int:
        return self.mesh.pipeline

    @property
    def tensor(self) -> int:
        return self.mesh.tensor

    @property
    def data(self) -> int:
        return self.mesh.data

    @cached_property
    def _axes(self) -> str:
        """The axes in the order of the placement: the last one varies fastest over the global rank."""
        return "".join(AXES[letter] for letter in self.placement)

    @cached_property
    def _degrees(self) -> dict[str, int]:
        return {
            "R": self.mesh.replicate,
            "S": self.mesh.shard,
            "C": self.mesh.context,
            "P": self.mesh.pipeline,
            "T": self.mesh.tensor,
        }

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return the rank's index on each axis."""
        # The rank is a number in mixed radix whose digits, right to left, are the indices.
        coordinates = {}
        for axis in reversed(self._axes):
            rank, coordinates[axis] = divmod(rank, self._degrees[axis])
        return coordinates

    def rank(self, coordinates: dict[str, int]) -> int:
        """Return the global rank at these coordinates."""
        rank = 0
        for axis in self._axes:
            rank = rank * self._degrees[axis] + coordinates[axis]
        return rank

    def index(self, axes: str, rank: int) -> int:
        """Return the rank's index in its group along `axes`."""
        return self.group(axes, rank).index(rank)

    def group(self, axes: Sequence[str], rank: int) -> tuple[int, ...]:
        """Return the ranks that differ from `rank` along `axes` only, `rank` included, in the order of those axes.

        `axes` is one letter or several: "P" is the pipeline of a rank, "PT" its model-parallel group, and "D" stands
        for "RSC".
        """
        coordinates = self.coordinates(rank)
        wanted = {axis for letter in axes for axis in AXES.get(letter, letter)}
        # In the order of the placement, so that every rank of a group lists it in the same order.
        ordered = [axis for axis in self._axes if axis in wanted]
        return tuple(
            self.rank({**coordinates, **dict(zip(ordered, indices, strict=True))})
            for indices in product(*(range(self._degrees[axis]) for axis in ordered))
        )

    def groups(self, axes: Sequence[str]) -> list[tuple[int, ...]]:
        """Return every group along `axes` once, sorted by its lowest rank."""
        return sorted({self.group(axes, rank) for rank in range(self.world_size)})
