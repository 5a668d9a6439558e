"""The state of all random numbers, which is read again only after a draw."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from herringbone_parallel.torch.position import random_state

DRAWS: list[Callable[[], Any]] = [
    lambda: None,
    lambda: random.random(),
    lambda: random.gauss(0, 1),
    lambda: random.gauss(0, 1),
    lambda: random.seed(3),
    lambda: random.shuffle([1, 2, 3]),
    lambda: np.random.rand(),
    # The second number of a pair is kept.
    lambda: np.random.randn(),
    lambda: np.random.randn(),
    lambda: np.random.seed(3),
    lambda: np.random.randn(3),
    lambda: np.random.permutation(4),
    lambda: torch.rand(1),
]


def drawn() -> list[Any]:
    return [random.gauss(0, 1), random.random(), *np.random.randn(3), *torch.randn(3).tolist()]


@pytest.mark.parametrize("again", range(2))
def test_numbers_go_on_after_each_kind_of_draw(again: int) -> None:
    for draw in DRAWS:
        draw()
        later = random_state.remember()
        expected = drawn()
        state = later()
        assert state != random_state.take()
        random_state.restore(state)
        assert random_state.take() == state
        assert drawn() == expected, again


def test_a_second_normal_number_is_a_draw() -> None:
    np.random.seed(3)
    np.random.randn()
    before = random_state.take()
    np.random.randn()
    assert random_state.take() != before


def test_a_rank_that_nobody_had_draws_other_numbers_on_its_devices_too(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
    state = random_state.take()
    draws = [drawn()]
    for others in ((4, 0), (4, 1), (5, 0)):
        random_state.go_on(state, *others)
        draws.append(drawn())
    assert len({tuple(one) for one in draws}) == 4
    assert len(set(seeds)) == 3
    random_state.go_on(state)
    assert (drawn(), len(seeds)) == (draws[0], 3)
