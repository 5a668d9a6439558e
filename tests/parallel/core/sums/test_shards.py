from __future__ import annotations

import doctest
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.sums import shards
from herringbone_parallel.core.sums.shards import Shard, busiest_share, sent_bytes, shard_map


def messages(shards: tuple[Shard, ...], workers: int, helpers: int) -> tuple[list[int], list[int]]:
    """Return the elements that each host sends and receives, counted message by message."""
    sent, received = [0] * (helpers + workers), [0] * (helpers + workers)
    for shard in shards:
        for worker in range(helpers, helpers + workers):
            if worker != shard.server:
                for source, target in ((worker, shard.server), (shard.server, worker)):
                    sent[source] += shard.count
                    received[target] += shard.count
    return sent, received


def test_doctests() -> None:
    assert doctest.testmod(shards) == (0, 3)


def test_helpers_have_larger_shards_than_workers() -> None:
    assert shard_map(20, workers=4, helpers=2, message=1) == (
        Shard(0, 0, 6), Shard(1, 6, 6),
        Shard(2, 12, 2), Shard(3, 14, 2), Shard(4, 16, 2), Shard(5, 18, 2),
    )  # fmt: skip


def test_no_helpers_make_every_worker_a_server_and_enough_helpers_none() -> None:
    assert [shard.server for shard in shard_map(1 << 20, workers=3, helpers=0)] == [0, 1, 2]
    assert [shard.server for shard in shard_map(1 << 20, workers=3, helpers=3)] == [0, 1, 2]
    assert [shard.server for shard in shard_map(1 << 20, workers=3, helpers=5)] == [0, 1, 2, 3, 4]


def test_a_lone_worker_sends_nothing() -> None:
    assert shard_map(100, workers=1, helpers=3) == (Shard(3, 0, 100),)
    assert sent_bytes(shard_map(100, workers=1, helpers=3), 1, 3, element_bytes=4) == (0, 0, 0, 0)


def test_nothing_to_sum_needs_no_server() -> None:
    assert shard_map(0, workers=4, helpers=4) == ()


@pytest.mark.parametrize(
    ("count", "helpers", "servers"),
    [(64, 4, 1), (1024, 4, 2), (4096, 4, 4), (1024, 0, 2), (1024, 2, 2), (4096, 2, 4), (65536, 2, 6)],
)
def test_little_is_summed_by_few_servers(count: int, helpers: int, servers: int) -> None:
    assert len(shard_map(count, workers=4, helpers=helpers)) == servers


def test_if_some_workers_serve_they_send_as_much_as_a_helper() -> None:
    layout = shard_map(120_000, workers=6, helpers=2, message=20_000)
    assert [shard.server for shard in layout] == [0, 1, 2, 3, 4, 5]
    sent = sent_bytes(layout, workers=6, helpers=2, element_bytes=1)
    assert sent[:6] == pytest.approx([sent[0]] * 6, rel=1e-3)
    assert sent[6:] == (120_000, 120_000)


def test_shards_start_at_multiples_of_align() -> None:
    assert shard_map(100, workers=4, helpers=4, align=32, message=1) == (
        Shard(0, 0, 32), Shard(1, 32, 32), Shard(2, 64, 32), Shard(3, 96, 4),
    )  # fmt: skip


# The theory: bytes that the busiest host sends per byte of gradients.
@pytest.mark.parametrize(
    ("workers", "by_helpers"),
    [
        (4, {0: 1.50, 1: 1.33, 2: 1.20, 4: 1.00}),
        (8, {0: 1.75, 1: 1.60, 2: 1.47, 4: 1.27, 8: 1.00}),
        (16, {0: 1.88, 1: 1.78, 4: 1.54, 8: 1.30, 16: 1.00}),
    ],
)
def test_every_host_sends_as_much_as_theory_says(workers: int, by_helpers: dict[int, float]) -> None:
    count = 25_000_000 // 4
    for helpers, share in by_helpers.items():
        sent = sent_bytes(shard_map(count, workers, helpers), workers, helpers, element_bytes=4)
        assert sent == pytest.approx([share * count * 4] * len(sent), rel=0.01)
        assert busiest_share(workers, helpers) == pytest.approx(share, abs=0.006)


@pytest.mark.parametrize(
    ("workers", "helpers", "gain"),
    [
        (8, 2, 1.19),
        (8, 4, 1.38),
        (8, 8, 1.75),
        (32, 8, 1.23),
        (32, 16, 1.47),
        (32, 32, 1.94),
        (256, 256, 1.99),
        (2, 1, 1),
    ],
)
def test_the_gain_over_a_ring(workers: int, helpers: int, gain: float) -> None:
    assert busiest_share(workers, 0) / busiest_share(workers, helpers) == pytest.approx(gain, abs=0.006)


@given(
    count=st.integers(0, 5000),
    workers=st.integers(1, 12),
    helpers=st.integers(0, 16),
    align=st.sampled_from([1, 2, 8, 32]),
    message=st.sampled_from([1, 64, 1024]),
)
def test_shards_cover_all_without_gap_or_overlap(
    count: int, workers: int, helpers: int, align: int, message: int
) -> None:
    layout = shard_map(count, workers, helpers, align=align, message=message)
    assert sum(shard.count for shard in layout) == count
    assert all(shard.count > 0 and shard.offset % align == 0 for shard in layout)
    assert all(a.offset + a.count == b.offset and a.server < b.server for a, b in pairwise(layout))
    assert all(0 <= shard.server < helpers + workers for shard in layout)
    for kind in (sizes_of(layout, 0, helpers), sizes_of(layout, helpers, helpers + workers)):
        # Servers of a kind are level; the very last shard may end early, where the elements do.
        assert max(kind[:-1], default=0) - min(kind[:-1], default=0) <= align
        assert not kind or kind[-1] <= max(kind[:-1], default=kind[-1]) + align
    sent, received = messages(layout, workers, helpers)
    assert sent == received
    assert tuple(4 * elements for elements in sent) == sent_bytes(layout, workers, helpers, element_bytes=4)


def sizes_of(shards: tuple[Shard, ...], first: int, end: int) -> list[int]:
    return [shard.count for shard in shards if first <= shard.server < end]


@given(workers=st.integers(2, 64), helpers=st.integers(0, 64))
def test_helpers_never_add_to_the_busiest_and_never_go_below_the_gradients_once(workers: int, helpers: int) -> None:
    assert 1.0 <= busiest_share(workers, helpers + 1) <= busiest_share(workers, helpers) <= busiest_share(workers, 0)


def test_impossible_counts_are_refused() -> None:
    with pytest.raises(ParallelError, match="0 workers and 2 helpers"):
        shard_map(10, workers=0, helpers=2)
    with pytest.raises(ParallelError, match="align 0"):
        shard_map(10, workers=2, helpers=2, align=0)
