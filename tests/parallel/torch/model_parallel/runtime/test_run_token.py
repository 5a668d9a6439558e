"""The baton alone: no ranks, no torch, messages handed in by the test."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from herringbone_parallel.core.pipeline.schedule import make_schedule
from herringbone_parallel.torch.model_parallel.runtime.run_token import Baton, Crew, Turn


def baton_of(body: Callable[[int], None], count: int = 3, pipeline: str = "interleaved") -> Baton:
    return Baton(make_schedule(pipeline, active=3), Crew(), count, body, keep=lambda: lambda: None)


def test_backwards_go_first_and_waiting_hands_the_baton_on() -> None:
    done: list[str] = []

    def body(index: int) -> None:
        done.append(f"F{index}")
        if index == 0:
            baton.wait(0, "late")
        baton.enter_backward(index)
        done.append(f"B{index}")
        if index == 2:
            baton.deliver("late", None)

    baton = baton_of(body)
    baton.run()
    assert done == ["F0", "F1", "B1", "F2", "B2", "B0"]
    assert baton.peak_live == 2


def test_messages_of_one_key_are_opened_in_the_order_of_their_arrival() -> None:
    """Two backwards through one value: the second gradient came before the first was wanted, and took its place."""
    opened: list[int] = []

    def body(index: int) -> None:
        opened.append(baton.wait(index, "gradient"))
        opened.append(baton.wait(index, "gradient"))

    baton = baton_of(body, count=1)
    baton.deliver("gradient", 1)
    baton.deliver("gradient", 2)
    baton.run()
    assert opened == [1, 2]


def test_weights_wait_for_a_gap_and_go_in_the_order_of_the_microbatches() -> None:
    """Microbatch 1 has come to its weights first, and lets 2 begin; 0, 1 and 2 then end in their order."""
    done: list[str] = []

    def body(index: int) -> None:
        done.append(f"F{index}")
        if index == 0:
            baton.wait(0, "late")
        baton.enter_backward(index)
        done.append(f"B{index}")
        if index == 2:
            baton.deliver("late", None)
        baton.enter_weight(index)
        done.append(f"W{index}")

    baton = baton_of(body, count=4, pipeline="zero_bubble")
    baton.run()
    assert done == ["F0", "F1", "B1", "F2", "B2", "B0", "W0", "F3", "B3", "W1", "W2", "W3"]
    assert baton.peak_live == 3, "a microbatch is live until its weights are done"


def test_turns_keep_the_order_of_the_microbatches() -> None:
    done: list[int] = []

    def body(index: int) -> None:
        if index == 0:
            baton.wait(0, "late")
        if index == 1:
            baton.deliver("late", None)
        turn = Turn(1, "layer", 1)
        baton.await_turn(index, turn)
        done.append(index)
        baton.pass_turn(index, turn)

    baton = baton_of(body)
    baton.run()
    assert done == [0, 1, 2]


def test_messages_before_the_start_do_not_start_anything() -> None:
    """A message that a peer had sent early started microbatch 0 before run(), and run() then woke it a second time."""
    done: list[object] = []
    baton = baton_of(lambda index: done.append(baton.wait(index, index)))
    for index in range(3):
        baton.deliver(index, index * 10)
    assert done == []
    baton.run()
    assert done == [0, 10, 20]


def test_a_failure_ends_also_who_was_running_when_it_came() -> None:
    """The one that ran went to sleep after the others had been woken, and nobody woke it again."""

    def body(index: int) -> None:
        if index == 0:
            baton.wait(0, "never")
        baton.fail(ZeroDivisionError("elsewhere"))
        baton.wait(index, "never")

    baton = baton_of(body)
    with pytest.raises(ZeroDivisionError, match="elsewhere"):
        baton.run()


def test_the_crew_grows_to_the_live_microbatches_and_no_further() -> None:
    crew = Crew()
    seen: set[int] = set()
    for _ in range(5):
        Baton(make_schedule("interleaved", active=1), crew, 4, seen.add, keep=lambda: lambda: None).run()
    crew.dismiss()
    assert seen == {0, 1, 2, 3}
