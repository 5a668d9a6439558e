"""The run token alone: no ranks, no torch; the test delivers the messages."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from herringbone_parallel.core.pipeline.schedule import make_schedule
from herringbone_parallel.torch.model_parallel.runtime.run_token import RunToken, Ticket
from herringbone_parallel.torch.model_parallel.runtime.thread_pool import ThreadPool


def token_of(body: Callable[[int], None], count: int = 3, pipeline: str = "interleaved") -> RunToken:
    return RunToken(make_schedule(pipeline, active=3), ThreadPool(), count, body, save_state=lambda: lambda: None)


def test_backwards_go_first_and_a_wait_hands_the_token_on() -> None:
    done: list[str] = []

    def body(index: int) -> None:
        done.append(f"F{index}")
        if index == 0:
            token.wait(0, "late")
        token.enter_backward(index)
        done.append(f"B{index}")
        if index == 2:
            token.deliver("late", None)

    token = token_of(body)
    token.run()
    assert done == ["F0", "F1", "B1", "F2", "B2", "B0"]
    assert token.peak_live == 2


def test_messages_of_one_key_are_taken_in_the_order_of_their_arrival() -> None:
    """Regression: with two backwards through one value, the second gradient replaced the first before that was used."""
    gradients: list[int] = []

    def body(index: int) -> None:
        gradients.append(token.wait(index, "gradient"))
        gradients.append(token.wait(index, "gradient"))

    token = token_of(body, count=1)
    token.deliver("gradient", 1)
    token.deliver("gradient", 2)
    token.run()
    assert gradients == [1, 2]


def test_weights_wait_for_a_gap_and_go_in_the_order_of_the_microbatches() -> None:
    """Microbatch 1 reaches its weights first and lets 2 begin; then 0, 1 and 2 end in this order."""
    done: list[str] = []

    def body(index: int) -> None:
        done.append(f"F{index}")
        if index == 0:
            token.wait(0, "late")
        token.enter_backward(index)
        done.append(f"B{index}")
        if index == 2:
            token.deliver("late", None)
        token.enter_weight(index)
        done.append(f"W{index}")

    token = token_of(body, count=4, pipeline="zero_bubble")
    token.run()
    assert done == ["F0", "F1", "B1", "F2", "B2", "B0", "W0", "F3", "B3", "W1", "W2", "W3"]
    assert token.peak_live == 3, "a microbatch is live until its weights are done"


def test_tickets_keep_the_order_of_the_microbatches() -> None:
    done: list[int] = []

    def body(index: int) -> None:
        if index == 0:
            token.wait(0, "late")
        if index == 1:
            token.deliver("late", None)
        ticket = Ticket(1, "layer", 1)
        token.await_ticket(index, ticket)
        done.append(index)
        token.pass_ticket(index, ticket)

    token = token_of(body)
    token.run()
    assert done == [0, 1, 2]


def test_messages_before_the_start_do_not_start_anything() -> None:
    """Regression: an early message of a peer started microbatch 0 before run(), and run() woke it a second time."""
    done: list[object] = []
    token = token_of(lambda index: done.append(token.wait(index, index)))
    for index in range(3):
        token.deliver(index, index * 10)
    assert done == []
    token.run()
    assert done == [0, 10, 20]


def test_a_failure_also_ends_the_microbatch_that_was_running() -> None:
    """Regression: the running microbatch parked after the others had been woken, and nobody woke it again."""

    def body(index: int) -> None:
        if index == 0:
            token.wait(0, "never")
        token.fail(ZeroDivisionError("elsewhere"))
        token.wait(index, "never")

    token = token_of(body)
    with pytest.raises(ZeroDivisionError, match="elsewhere"):
        token.run()


def test_the_pool_grows_to_the_live_microbatches_and_no_further() -> None:
    pool = ThreadPool()
    run: set[int] = set()
    for _ in range(5):
        RunToken(make_schedule("interleaved", active=1), pool, 4, run.add, save_state=lambda: lambda: None).run()
    pool.close()
    assert run == {0, 1, 2, 3}
