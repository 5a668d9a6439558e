"""Each schedule chooses the right microbatch; test_simulate.py draws whole steps."""

from __future__ import annotations

import pytest

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.pipeline.schedule import PHASES, Ready, make_schedule


def choice(pipeline: str, ready: Ready, active: int = 4) -> int | None:
    return make_schedule(pipeline, active=active)(ready)


@pytest.mark.parametrize(
    ("ready", "expected"),
    [
        (Ready(forward=(), backward=(0,), fresh=(2, 3), live=2, forwards_left=2), 2),
        (Ready(forward=(1,), backward=(0,), fresh=(2, 3), live=2, forwards_left=3), 1),
        # One forward is still waiting for a message: no backward yet.
        (Ready(forward=(), backward=(0, 1), fresh=(), live=3, forwards_left=1), None),
        (Ready(forward=(), backward=(0, 1), fresh=(), live=3, forwards_left=0), 0),
    ],
)
def test_simple_runs_backwards_when_no_forward_is_left(ready: Ready, expected: int | None) -> None:
    assert choice("simple", ready) == expected


@pytest.mark.parametrize("pipeline", ["interleaved", "zero_bubble"])
@pytest.mark.parametrize(
    ("ready", "expected"),
    [
        (Ready(forward=(1,), backward=(0,), fresh=(3,), live=3, forwards_left=2), 0),
        (Ready(forward=(2,), backward=(), fresh=(3,), live=3, forwards_left=2), 2),
        (Ready(forward=(), backward=(), fresh=(3,), live=3, forwards_left=1), 3),
        (Ready(forward=(), backward=(), fresh=(4,), live=4, forwards_left=1), None),
    ],
)
def test_interleaved_runs_backwards_first_and_starts_below_the_limit(
    pipeline: str, ready: Ready, expected: int | None
) -> None:
    assert choice(pipeline, ready) == expected


@pytest.mark.parametrize(
    ("ready", "expected"),
    [
        (Ready(forward=(), backward=(1,), fresh=(), live=2, forwards_left=0, weight=(0,)), 1),
        (Ready(forward=(), backward=(), fresh=(4,), live=3, forwards_left=1, weight=(0,)), 4),
        (Ready(forward=(), backward=(), fresh=(4,), live=4, forwards_left=1, weight=(0, 1)), 0),
        (Ready(forward=(), backward=(), fresh=(), live=2, forwards_left=0, weight=(0, 1)), 0),
    ],
)
def test_zero_bubble_runs_weights_when_it_would_wait(ready: Ready, expected: int) -> None:
    assert choice("zero_bubble", ready) == expected


def test_only_forward_continues_before_it_starts_another() -> None:
    assert choice("_only_forward", Ready((1,), (), (2,), live=2, forwards_left=2)) == 1
    assert choice("_only_forward", Ready((), (), (2,), live=2, forwards_left=2)) == 2
    assert choice("_only_forward", Ready((), (), (4,), live=4, forwards_left=2)) is None


@pytest.mark.parametrize("pipeline", PHASES)
def test_with_nothing_to_do_every_schedule_waits(pipeline: str) -> None:
    assert choice(pipeline, Ready((), (), (), live=1, forwards_left=0)) is None


def test_an_unknown_pipeline_is_refused_with_the_choices() -> None:
    with pytest.raises(ParallelError, match="simple, interleaved, zero_bubble, _only_forward"):
        make_schedule("gpipe", active=4)
