from __future__ import annotations

import pytest

from herringbone_parallel.core.pipeline.divergence import Call, Trace, difference, is_deadlock

EMBED, BLOCK, HEAD = ("embed", 0), ("block.3", 0), ("head", 1)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (
            (EMBED, HEAD),
            (EMBED, BLOCK),
            "after 'embed': pipeline rank 0 called 'head', rank 3 called 'block.3' (call 2",
        ),
        ((HEAD,), (BLOCK, HEAD), "microbatch 2: pipeline rank 0 called 'head', rank 3 called 'block.3' (call 1"),
        ((EMBED,), (("embed", 1),), "pipeline rank 0 called 'embed' on rank 0, rank 3 called 'embed' on rank 1 ("),
    ],
)
def test_other_calls_are_named_with_their_ranks(
    first: tuple[Call, ...], second: tuple[Call, ...], expected: str
) -> None:
    message = difference(2, {3: Trace(second, ended=False), 0: Trace(first, ended=False)})
    assert message is not None
    assert "the ranks of the pipeline diverge in microbatch 2" in message
    assert expected in message
    assert "must do the same on every rank" in message


def test_a_rank_that_has_ended_and_one_that_went_on() -> None:
    message = difference(0, {0: Trace((EMBED,), ended=True), 1: Trace((EMBED, HEAD), ended=False)})
    assert message is not None
    assert "after 'embed': pipeline rank 0 ended the step function, rank 1 called 'head'" in message


@pytest.mark.parametrize("ended", [False, True])
def test_a_slow_rank_is_no_divergence(ended: bool) -> None:
    calls = (EMBED, BLOCK, HEAD)
    for length in range(len(calls) + 1):
        assert difference(0, {0: Trace(calls, ended), 1: Trace(calls[:length], ended=False)}) is None


def test_the_same_on_both_is_no_difference() -> None:
    assert difference(0, {0: Trace((EMBED,), ended=True), 1: Trace((EMBED,), ended=True)}) is None


def test_only_ranks_that_have_received_each_others_last_count_are_a_deadlock() -> None:
    assert is_deadlock({0: (1, {1: 4, 2: 7}), 1: (4, {0: 1, 2: 7}), 2: (7, {0: 1, 1: 4})})
    assert not is_deadlock({0: (1, {1: 4, 2: 7}), 1: (4, {0: 1}), 2: (7, {0: 1, 1: 4})}), "1 has not heard of 2"
    assert not is_deadlock({0: (1, {1: 4, 2: 7}), 1: (4, {0: 1, 2: 6}), 2: (7, {0: 1, 1: 4})}), "2 has moved since"
