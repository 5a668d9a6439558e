"""examples/common: the order of the examples, and their distribution over ranks."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

Load = Callable[[str, str], ModuleType]


def test_a_step_has_the_same_parts_on_any_number_of_ranks(module: Load) -> None:
    order = module("common", "common.order")

    def parts(ranks: int) -> list[list[list[int]]]:
        """Return the parts of each step of an epoch, of all ranks together."""
        built = order.Order(50, global_batch=16, rank_batch=4, ranks=ranks, seed=1)
        assert built.parts_per_step == 4 // ranks
        epochs = [built.epoch(2, rank=rank) for rank in range(ranks)]
        return [sorted(part for epoch in epochs for part in epoch[step]) for step in range(built.steps_per_epoch)]

    assert parts(1) == parts(2) == parts(4)
    indices = [index for step in parts(1) for part in step for index in part]
    assert len(indices) == len(set(indices)) == 48


def test_every_epoch_and_seed_has_an_order_of_its_own(module: Load) -> None:
    order = module("common", "common.order")
    built, other = (order.Order(16, global_batch=16, rank_batch=16, ranks=1, seed=seed) for seed in (1, 2))
    epochs = [built.epoch(0, rank=0), built.epoch(1, rank=0), other.epoch(0, rank=0)]
    assert all(epochs.count(epoch) == 1 for epoch in epochs)


def test_batches_that_do_not_fit_are_refused(module: Load) -> None:
    order = module("common", "common.order")
    with pytest.raises(ValueError, match="50 examples do not fill a global batch of 64"):
        order.Order(50, global_batch=64, rank_batch=8, ranks=1, seed=1)
    with pytest.raises(Exception, match="cannot be made of 3 ranks x 8 examples"):
        order.Order(500, global_batch=64, rank_batch=8, ranks=3, seed=1)


def test_truth(module: Load) -> None:
    settings = module("common", "common.settings")
    assert [settings.truth(text) for text in ("true", "False")] == [True, False]
    with pytest.raises(Exception, match="'1' is neither true nor false"):
        settings.truth("1")
