"""The order of samples, and the place in it, on any ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.position import place_of, share, turns
from herringbone_parallel.position.samples import Order


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("consumed", [0, 3, 9, 10])
def test_places_are_those_of_the_shared_list(consumed: int, drop_last: bool) -> None:
    order = [7, 3, 5, 1, 4, 0, 9, 2, 8, 6]
    for ranks in (1, 2, 4):
        for rank in range(ranks):
            count = turns(len(order), consumed, ranks, drop_last)
            found = [order[place_of(len(order), consumed, ranks, rank, turn)] for turn in range(count)]
            assert found == share(order, consumed, ranks, rank, drop_last)


def _step(orders: list[Order]) -> list[int]:
    """Take a batch on each rank."""
    taken = [index for order in orders for index in order.batch(order.used)[0].tolist()]
    for order in orders:
        order.used += 1
    return taken


def test_an_epoch_goes_on_on_other_ranks() -> None:
    first = [Order(22, 3, seed=1, ranks=2, rank=rank) for rank in range(2)]
    used = _step(first) + _step(first)
    assert first[0].take() == first[1].take()
    rest = [Order(22, 2, seed=1, ranks=3, rank=rank) for rank in range(3)]
    for order in rest:
        order.put(first[0].take())
    while rest[0].place()[0] == 0:
        used += _step(rest)
    # Ten are left for three ranks: the first two of the order fill the last round.
    repeated = Counter(used) - Counter(range(22))
    assert repeated == Counter(Order(22, 2, seed=1).batch(0)[0].tolist())
    assert rest[0].take() == {"epoch": 1, "samples": 0, "length": 22, "order": 0}


def test_seeds_depend_on_the_sample_and_not_on_ranks() -> None:
    alone, two = Order(8, 8, seed=5), [Order(8, 4, seed=5, ranks=2, rank=rank) for rank in range(2)]
    of = {index: seed.tolist() for index, seed in zip(*alone.batch(0), strict=True)}
    for order in two:
        for index, seed in zip(*order.batch(0), strict=True):
            assert seed.tolist() == of[index]
    assert len({tuple(seed) for seed in of.values()}) == 8
    alone.end()
    assert not {tuple(seed) for seed in of.values()} & {tuple(seed) for seed in alone.batch(0)[1].tolist()}


def test_a_pass_without_a_step_is_no_epoch() -> None:
    order, steps = Order(6, 2), [0]
    for _ in order.pass_through(lambda: steps[0]):
        pass
    assert order.place() == (0, 0)
    for _ in order.pass_through(lambda: steps[0]):
        steps[0] += 1
        break
    assert order.place() == (1, 0)
    left = iter(order.pass_through(lambda: steps[0]))
    next(left)
    for number in order.pass_through(lambda: steps[0]):
        steps[0] += 1
        # The iterator that is dropped here is of an earlier pass.
        left = iter(())
        assert order.place() == ((1, 2 * (number + 1)) if number < 2 else (2, 0))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: Order(7, 2), "other data"),
        (lambda: Order(6, 2, seed=1), "order of epoch 0"),
        (lambda: Order(6, 2, shuffle=False), "order of epoch 0"),
        (lambda: Order(6, 2, order=lambda _: np.arange(5)), "has .5,. indices"),
        (lambda: Order(0, 2), "give positive ones"),
    ],
)
def test_other_data_and_orders_are_refused(other: Callable[[], Any], message: str) -> None:
    order = Order(6, 2)
    order.used = 1
    with pytest.raises(ParallelError, match=message):
        other().put(order.take())


def test_the_shuffled_order_is_that_of_all_releases() -> None:
    assert Order(8, 8, seed=3).batch(0)[0].tolist() == [1, 4, 7, 0, 2, 5, 3, 6]
