from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.sums import credits
from herringbone_parallel.core.sums.credits import Window, choose_chunk, choose_window, largest_window


def test_doctests() -> None:
    assert doctest.testmod(credits) == (0, 6)


def test_the_default_is_the_window_that_was_fastest_when_measured() -> None:
    assert Window() == Window(chunk_bytes=32 << 10, chunks=4)


def test_many_workers_into_a_small_queue_make_chunks_small() -> None:
    assert choose_window(32, 32, queue_bytes=1 << 20, bandwidth=1e8, latency=5e-5) == Window(8 << 10, 3, 400, 12_500)


def test_workers_for_which_no_window_fits_get_the_smallest() -> None:
    assert choose_window(2048, 2048, queue_bytes=1 << 20, bandwidth=1e8, latency=2e-5) == Window(8 << 10, 3, 400, 196)
    assert choose_window(2048, 2048, queue_bytes=1 << 20, bandwidth=12.5e9, latency=2e-5) == Window(
        64 << 10, 3, 50_000, 24_415
    )


def test_a_fast_link_takes_larger_chunks_and_a_long_one_more_of_them() -> None:
    assert choose_window(2, 2, queue_bytes=64 << 20, bandwidth=12.5e9, latency=0) == Window(
        256 << 10, 4, 50_000, 25_000_000
    )
    # 500 KB in flight on the round trip, and a chunk that is being summed.
    assert choose_window(2, 1, queue_bytes=64 << 20, bandwidth=1.25e9, latency=2e-4) == Window(
        32 << 10, 17, 5_000, 5_000_000
    )


def test_a_message_costs_more_bytes_on_a_fast_link_and_chunks_are_larger_for_it() -> None:
    """A shard of 1 MB at 100 Mbit/s, 10 and 100 Gbit/s."""
    windows = [choose_window(2, 2, queue_bytes=1 << 20, bandwidth=rate, latency=0) for rate in (12e6, 1.2e9, 12e9)]
    assert [window.message for window in windows] == [96, 4_800, 48_000]
    assert [choose_chunk(1 << 20, most=window.chunk_bytes, message=window.message) for window in windows] == [
        9_728, 32_768, 131_072
    ]  # fmt: skip


def test_no_window_is_larger_than_the_largest() -> None:
    for workers in (2, 4, 8, 64):
        largest = largest_window(workers, workers, queue_bytes=1 << 20)
        for rate in (1.0, 1e8, 1e9, 1e10):
            window = choose_window(workers, workers, queue_bytes=1 << 20, bandwidth=rate, latency=0)
            assert window.bytes <= largest.bytes
            assert window.chunk_bytes <= largest.chunk_bytes


@given(
    workers=st.integers(1, 4096),
    servers=st.integers(1, 4096),
    queue=st.integers(1, 1 << 26),
    latency=st.floats(0, 0.1),
)
def test_all_workers_fit_in_the_queue_or_the_window_is_the_least(
    workers: int, servers: int, queue: int, latency: float
) -> None:
    window = choose_window(workers, servers, queue_bytes=queue, bandwidth=1e9, latency=latency)
    assert window.bytes * workers < queue or (window.chunk_bytes, window.chunks) == (8 << 10, 3)


def test_impossible_figures_are_refused() -> None:
    with pytest.raises(ParallelError, match="bandwidth 0"):
        choose_window(2, 2, queue_bytes=1, bandwidth=0, latency=0)
    with pytest.raises(ParallelError, match="chunks=0"):
        Window(chunks=0)
