"""Steps are counted once, whoever takes them, and their times arrive in batches that a pipe takes whole."""

from __future__ import annotations

import json

import pytest

from herringbone_contract.events import emit, steps
from herringbone_contract.events.steps import MAX_STEPS, StepCounter


class Optimizer:
    """Stands for an object that takes steps."""


def ticks(counter: StepCounter, times, owner) -> list[dict]:
    return [batch for now in times if (batch := counter.tick(now, owner)) is not None]


def test_times_arrive_once_a_second_and_none_is_lost() -> None:
    counter, optimizer = StepCounter(), Optimizer()
    batches = ticks(counter, [100 + index / 8 for index in range(41)], optimizer)
    rest = counter.batch()
    assert [batch["count"] for batch in batches] == [9, 17, 25, 33, 41]
    assert rest is None
    assert [seconds for batch in batches for seconds in batch["seconds"]] == [0.125] * 40


def test_slow_steps_arrive_at_once() -> None:
    optimizer = Optimizer()
    assert ticks(StepCounter(), [1.0, 4.0, 7.5], optimizer) == [
        {"count": 2, "seconds": [3.0]},
        {"count": 3, "seconds": [3.5]},
    ]


def test_own_times_are_sent_only_for_all_steps_of_a_batch() -> None:
    counter, optimizer = StepCounter(), Optimizer()
    counter.tick(1.0, optimizer)
    counter.hand_over(1.25)
    counter.hand_over(1.75)
    # Rank 1 waits for the others here.
    assert counter.tick(4.0, optimizer) == {"count": 2, "seconds": [3.0], "own": [0.75]}
    counter.hand_over(4.5)
    counter.tick(4.75, optimizer)
    # No gradients in this step: what was handed over belongs to the one before.
    assert counter.tick(5.5, optimizer) == {"count": 4, "seconds": [0.75, 0.75]}
    # This rank has waited in a pipeline before it handed over.
    counter.hand_over(5.75)
    counter.hand_over(None)
    assert counter.tick(6.75, optimizer) == {"count": 5, "seconds": [1.25]}


def test_many_steps_in_a_second_fit_into_lines() -> None:
    counter, optimizer = StepCounter(), Optimizer()
    batches = []
    for index in range(3 * MAX_STEPS + 1):
        counter.hand_over(100 + (index - 0.3) * 1.234567e-5)
        batches += ticks(counter, [100 + index * 1.234567e-5], optimizer)
    assert [len(batch["own"]) for batch in batches] == [MAX_STEPS] * 3
    assert [len(batch["seconds"]) for batch in batches] == [MAX_STEPS] * 3
    members = {"kind": "steps", "t": 1795397716.286413, "rank": 100_000, "since": 1795397716.286413}
    assert all(
        len(json.dumps({**members, **batch}, separators=(",", ":"))) < emit.MAX_LINE_BYTES - 100 for batch in batches
    )


def test_the_second_optimizer_of_a_step_does_not_count() -> None:
    counter, generator, critic = StepCounter(), Optimizer(), Optimizer()
    for step in range(20):
        counter.tick(step * 0.01, generator)
        counter.tick(step * 0.01 + 0.005, critic)
    assert counter.batch() == {"count": 20, "seconds": [0.01] * 19}
    # When the first one is gone, the other counts.
    del generator
    counter.tick(0.25, critic)
    assert counter.batch() == {"count": 21, "seconds": [0.06]}


def test_ticks_reach_the_fifo_and_cost_nothing_without_one(heard, monkeypatch) -> None:
    optimizer = Optimizer()
    with monkeypatch.context() as outside:
        outside.delenv(emit.VARIABLE)
        steps.ticker()(optimizer)
    times = iter([5.0, 7.0])
    tick = steps.ticker(lambda: next(times))
    tick(optimizer)
    tick(optimizer)
    [event] = heard()
    assert (event["kind"], event["rank"], event["count"], event["seconds"]) == ("steps", 1, 2, [2.0])
    assert event["t"] - event["since"] == pytest.approx(2.0, abs=0.01)
