"""Lays the global ranks out on three axes: data, pipeline and tensor parallelism."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from herringbone_contract.errors import ParallelError

AXES = "DPT"


@dataclass(frozen=True, slots=True)
class Grid:
    """Global ranks laid out over the axes D (data), P (pipeline) and T (tensor).

    The right-most letter of `placement` varies fastest over the global rank, as in SMP v1:
    "DPT" is its `cluster` (the ranks of one pipeline are neighbours), "TPD" its `spread`.

    >>> Grid(world_size=8, pipeline=2, placement="DPT").group("P", 0)
    (0, 1)
    >>> Grid(world_size=8, pipeline=2, placement="TPD").group("P", 0)
    (0, 4)

    `pipeline` and `tensor` are the numbers of ranks on these axes; the data axis has the rest. Raises `ParallelError`
    for a placement that is no permutation, and for ranks that do not fill the grid.
    """

    world_size: int
    pipeline: int = 1
    tensor: int = 1
    placement: str = "DPT"

    def __post_init__(self) -> None:
        if sorted(self.placement) != sorted(AXES):
            raise ParallelError(f"placement must be a permutation of the letters D, P, T, not {self.placement!r}")
        if self.world_size % (self.pipeline * self.tensor):
            raise ParallelError(
                f"{self.world_size} ranks cannot be shared out in pipelines of {self.pipeline} partitions"
                f" x {self.tensor} tensor-parallel ranks: {self.pipeline * self.tensor} does not divide"
                f" {self.world_size}. Change `partitions`, or `processes_per_host` x `instance_count`."
            )

    @property
    def data(self) -> int:
        return self.world_size // (self.pipeline * self.tensor)

    def degree(self, axis: str) -> int:
        """Return the number of ranks along an axis."""
        return {"D": self.data, "P": self.pipeline, "T": self.tensor}[axis]

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return the rank's index on each axis."""
        # The rank is a number in mixed radix whose digits, right to left, are the indices.
        coordinates = {}
        for axis in reversed(self.placement):
            rank, coordinates[axis] = divmod(rank, self.degree(axis))
        return coordinates

    def rank(self, coordinates: dict[str, int]) -> int:
        """Return the global rank at these coordinates."""
        rank = 0
        for axis in self.placement:
            rank = rank * self.degree(axis) + coordinates[axis]
        return rank

    def group(self, axes: Sequence[str], rank: int) -> tuple[int, ...]:
        """Return the ranks that differ from `rank` along `axes` only, `rank` included, in the order of those axes.

        `axes` is one letter or several: "P" is the pipeline of a rank, "PT" its model-parallel group.
        """
        coordinates = self.coordinates(rank)
        # In the order of the placement, so that every rank of a group lists it in the same order.
        ordered = [axis for axis in self.placement if axis in axes]
        return tuple(
            self.rank({**coordinates, **dict(zip(ordered, indices, strict=True))})
            for indices in product(*(range(self.degree(axis)) for axis in ordered))
        )

    def groups(self, axes: Sequence[str]) -> list[tuple[int, ...]]:
        """Return every group along `axes` once, sorted by its lowest rank."""
        return sorted({self.group(axes, rank) for rank in range(self.world_size)})
