"""Which file of a checkpoint of another library a rank goes on with, and with whose random numbers."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from herringbone_parallel.torch.position import random_state
from herringbone_parallel.torch.position.rank_places import RankPlace, read


def save(folder: Path, rank: int, ranks: int) -> RankPlace:
    random_state.seed(rank)
    place = RankPlace(random_state.take(), [], ranks)
    (folder / f"herringbone-place-{rank}.msgpack").write_bytes(msgspec.msgpack.encode(place))
    return place


def test_a_rank_goes_on_with_its_own(tmp_path: Path) -> None:
    places = [save(tmp_path, rank, 2) for rank in range(2)]
    assert [read(tmp_path, rank, 2) for rank in range(2)] == places


@pytest.mark.parametrize(("saved", "ranks"), [([0], 2), ([0, 1], 3), ([0, 1], 1), ([1], 2)])
def test_a_rank_without_its_own_draws_no_numbers_of_another(tmp_path: Path, saved: list[int], ranks: int) -> None:
    first = next(save(tmp_path, rank, 2) for rank in saved)
    for rank in range(ranks):
        if rank not in saved or ranks != 2:
            place = read(tmp_path, rank, ranks)
            # Numbers of 0 ranks are those of no rank here.
            assert place == msgspec.structs.replace(first, ranks=0)
    assert read(tmp_path / "none", 0, 1) is None
