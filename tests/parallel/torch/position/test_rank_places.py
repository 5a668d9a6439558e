"""Loaders of accelerate's that are followed; the file with which a rank goes on, and whose random numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from torch.utils.data import BatchSampler, DataLoader

from herringbone_parallel.torch.position import random_state
from herringbone_parallel.torch.position.prepared import prepare
from herringbone_parallel.torch.position.rank_places import RankPlace, read


def save(folder: Path, rank: int, ranks: int) -> RankPlace:
    random_state.seed(rank)
    place = RankPlace(random_state.take(), {}, ranks)
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


class Filled(BatchSampler):
    """Batches of which the last one is filled, as those of a split model are."""

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[0, 1, 2], [3, 4, 0]])


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"batch_size": 3}, ""),
        ({"batch_sampler": Filled(range(5), 3, drop_last=False)}, "its batches are made by a Filled"),
        ({"batch_sampler": [[3, 1], [4], [1, 2, 0]]}, "its batches are made by a list"),
        ({"batch_size": None}, "its batches are made by a NoneType"),
    ],
)
def test_every_batch_of_a_followed_loader_is_the_librarys_own(options: dict[str, Any], reason: str) -> None:
    base: DataLoader[Any] = DataLoader(list(range(5)), **options)
    batches = str(list(DataLoader(list(range(5)), **options)))
    assert prepare(SimpleNamespace(base_dataloader=base, synchronized_generator=None)) == reason
    assert str(list(base)) == batches
