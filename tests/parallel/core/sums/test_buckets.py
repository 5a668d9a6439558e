from __future__ import annotations

import doctest
from itertools import accumulate, combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.sums import buckets
from herringbone_parallel.core.sums.buckets import cut_buckets, final_times, plan_buckets
from herringbone_parallel.core.sums.links import Cost

MEGABYTE = 1_000_000


def last_sum_s(buckets: list[list[int]], sizes: list[int], ready_s: list[float], cost: Cost) -> float:
    """Return when the last bucket's sum is back, if sums run one after the other."""
    end_s = 0.0
    for bucket in buckets:
        end_s = max(end_s, ready_s[bucket[-1]]) + cost.seconds(sum(sizes[index] for index in bucket))
    return end_s


def planned(sizes: list[int], backward_s: float, cost: Cost) -> tuple[list[int], float]:
    """Return the number of tensors in each bucket, and the seconds from the end of the backward to the last sum."""
    ready_s = final_times(sizes, backward_s)
    plan = plan_buckets([("f", size) for size in sizes], ready_s=ready_s, cost=cost)
    return [len(bucket) for bucket in plan], last_sum_s(plan, sizes, ready_s, cost) - backward_s


def test_doctests() -> None:
    assert doctest.testmod(buckets) == (0, 5)


def test_the_first_bucket_is_small_and_the_last_takes_what_is_left() -> None:
    tensors = [("f", 4)] * 7
    assert cut_buckets(tensors, first_bytes=4, most_bytes=12) == [[0], [1, 2, 3], [4, 5, 6]]
    assert cut_buckets(tensors[:6], first_bytes=4, most_bytes=12) == [[0], [1, 2, 3], [4, 5]]


def test_a_tensor_larger_than_a_bucket_closes_it() -> None:
    assert cut_buckets([("f", 1), ("f", 100), ("f", 1)], first_bytes=2, most_bytes=10) == [[0, 1], [2]]


def test_kinds_do_not_mix_and_buckets_are_sorted_by_their_last_tensor() -> None:
    tensors = [("f", 1), ("h", 1), ("h", 1), ("f", 1)]
    assert cut_buckets(tensors, first_bytes=2, most_bytes=2) == [[1, 2], [0, 3]]


def test_no_tensors_make_no_buckets() -> None:
    assert cut_buckets([], first_bytes=1, most_bytes=1) == []


def test_on_a_slow_link_sums_start_early_and_never_pause() -> None:
    lengths, late_s = planned([MEGABYTE // 2] * 60, 0.09, Cost(alpha_s=0.0012, beta_s=4.24e-8))
    assert lengths == [1, 14, 45]
    # The first gradient, 3 messages, all bytes, less the backward: the link is busy all along.
    assert late_s == pytest.approx(0.09 / 60 + 3 * 0.0012 + 30 * MEGABYTE * 4.24e-8 - 0.09)


def test_with_a_slow_backward_the_last_bucket_is_small() -> None:
    lengths, late_s = planned([MEGABYTE // 2] * 60, 0.09, Cost(alpha_s=1e-5, beta_s=1e-10))
    assert lengths == [10, 10, 10, 10, 10, 9, 1]
    assert late_s == pytest.approx(6e-5)


def test_an_expensive_message_makes_one_bucket() -> None:
    assert planned([MEGABYTE] * 20, 0.01, Cost(alpha_s=1, beta_s=1e-9))[0] == [20]


def test_planned_sizes_beat_every_fixed_size_of_ddp() -> None:
    """A BERT-like model of 29 MB whose sum takes longer than its backward, and one where it is the other way round."""
    sizes = [400_000, 100_000, 600_000] * 26 + [700_000]
    for backward_s, cost in ((0.09, Cost(0.0075, 6.54e-8)), (0.9, Cost(0.0012, 1e-8)), (0.09, Cost(0.0012, 1e-9))):
        ready_s = final_times(sizes, backward_s)
        ours = planned(sizes, backward_s, cost)[1]
        for most in (1 << 20, 4 << 20, 25 << 20):
            cut = cut_buckets([("f", size) for size in sizes], first_bytes=1 << 20, most_bytes=most)
            assert ours <= last_sum_s(cut, sizes, ready_s, cost) - backward_s


costs = st.builds(Cost, alpha_s=st.sampled_from([0.0, 0.5, 3.0]), beta_s=st.sampled_from([0.0, 0.1, 1.0]))
sized = st.lists(st.integers(0, 9), max_size=9)


@given(sizes=sized, waits=st.lists(st.integers(0, 6), min_size=9, max_size=9), cost=costs)
def test_no_cut_into_runs_is_better(sizes: list[int], waits: list[int], cost: Cost) -> None:
    ready_s = [float(ready) for ready in accumulate(waits[: len(sizes)])]
    plan = plan_buckets([("f", size) for size in sizes], ready_s=ready_s, cost=cost)
    assert [index for bucket in plan for index in bucket] == list(range(len(sizes)))
    positions = range(1, len(sizes))
    every = (
        [list(range(a, b)) for a, b in zip((0, *cuts), (*cuts, len(sizes)), strict=True)]
        for number in range(len(sizes))
        for cuts in combinations(positions, number)
    )
    best_s = min((last_sum_s(cut, sizes, ready_s, cost) for cut in every), default=0.0)
    assert last_sum_s(plan, sizes, ready_s, cost) == pytest.approx(best_s)


@given(tensors=st.lists(st.tuples(st.sampled_from("fhi"), st.integers(0, 9)), max_size=30), cost=costs)
def test_planned_buckets_hold_every_tensor_once_and_one_kind_each(tensors: list[tuple[str, int]], cost: Cost) -> None:
    ready_s = final_times([size for _, size in tensors], 20.0)
    plan = plan_buckets(tensors, ready_s=ready_s, cost=cost)
    assert sorted(index for bucket in plan for index in bucket) == list(range(len(tensors)))
    assert all(len({tensors[index][0] for index in bucket}) == 1 and bucket == sorted(bucket) for bucket in plan)
    assert plan == sorted(plan, key=lambda bucket: bucket[-1])


def test_a_few_tensors_of_another_kind_do_not_make_many_buckets() -> None:
    """Norms in fp32 among weights in fp16: they travel together where that costs nothing."""
    tensors = [("h", MEGABYTE), ("f", 1000)] * 40
    ready_s = final_times([size for _, size in tensors], 0.4)
    plan = plan_buckets(tensors, ready_s=ready_s, cost=Cost(1e-3, 1e-9))
    kinds = [tensors[bucket[0]][0] for bucket in plan]
    assert kinds.count("f") <= 2
    assert kinds.count("h") >= 3


def test_decreasing_or_missing_times_are_refused() -> None:
    with pytest.raises(ParallelError, match="1 tensors and 2 times"):
        plan_buckets([("f", 1)], ready_s=[1, 2], cost=Cost(1, 1))
    with pytest.raises(ParallelError, match="none before an earlier one"):
        plan_buckets([("f", 1), ("f", 1)], ready_s=[2, 1], cost=Cost(1, 1))
