from __future__ import annotations

import pytest

from herringbone_contract.errors import DistributionError
from herringbone_contract.model_parallel.mesh import Mesh
from herringbone_parallel.core.grid import Grid


def test_cluster_keeps_a_pipeline_together() -> None:
    grid = Grid.of(8, pipeline=2, placement="DPT")
    assert grid.groups("P") == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert grid.groups("D") == [(0, 2, 4, 6), (1, 3, 5, 7)]


def test_spread_keeps_replicas_together() -> None:
    grid = Grid.of(8, pipeline=2, placement="TPD")
    assert grid.groups("P") == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert grid.groups("D") == [(0, 1, 2, 3), (4, 5, 6, 7)]


def test_placement_strategies_of_the_documentation() -> None:
    """AWS's tables for 8 ranks with tensor, pipeline and data degree 2."""
    dpt = Grid.of(8, pipeline=2, tensor=2, placement="DPT")
    assert (dpt.group("T", 0), dpt.group("P", 0), dpt.group("D", 0)) == ((0, 1), (0, 2), (0, 4))
    ptd = Grid.of(8, pipeline=2, tensor=2, placement="PTD")
    assert (ptd.group("D", 0), ptd.group("T", 0), ptd.group("P", 0)) == ((0, 1), (0, 2), (0, 4))


@pytest.mark.parametrize("placement", ["DPT", "DTP", "PDT", "PTD", "TDP", "TPD"])
def test_rank_and_coordinates_undo_each_other(placement: str) -> None:
    grid = Grid.of(12, pipeline=3, tensor=2, placement=placement)
    assert [grid.rank(grid.coordinates(rank)) for rank in range(12)] == list(range(12))
    assert all(rank in grid.group("PT", rank) for rank in range(12))


def test_ranks_that_do_not_fill_the_grid_are_refused() -> None:
    with pytest.raises(DistributionError, match="partitions 2 does not divide 3 ranks"):
        Grid.of(3, pipeline=2)


def test_the_data_axis_is_replicas_shards_and_contexts() -> None:
    grid = Grid(Mesh(replicate=2, shard=2, context=2, tensor=2), placement="DPT")
    assert grid.group("D", 0) == (0, 2, 4, 6, 8, 10, 12, 14)
    assert grid.group("T", 0) == (0, 1)
    assert grid.group("C", 0) == (0, 2)
    assert grid.group("S", 0) == (0, 4)
    assert grid.group("R", 0) == (0, 8)
    assert grid.group("SC", 9) == (9, 11, 13, 15)
    assert [grid.rank(grid.coordinates(rank)) for rank in range(16)] == list(range(16))
