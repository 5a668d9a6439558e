"""Simulated all-reduces agree with measurements, and with an oracle that simulates every host and every message."""

from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.sums import simulate
from herringbone_parallel.core.sums.cluster import Cluster
from herringbone_parallel.core.sums.credits import Window
from herringbone_parallel.core.sums.links import HostLink
from herringbone_parallel.core.sums.shards import busiest_share
from herringbone_parallel.core.sums.simulate import Sum, ring, sharded, tree

from .every_host import sum_seconds

# The links of the measurements: TCP over 200 Mbit/s gives 23.8 MB/s one way. Latencies are those of small messages
# between busy processes on two cores: a sixth of what a ring of 4 took for nothing (gloo 7.5 ms; Open MPI, which polls,
# 42 ms), half of what the servers took (1.2 ms). Two figures are fitted: what is left of the link when both ways are
# busy (raw TCP had 0.96), and how often Open MPI waits in one step of a large ring.
GOODPUT = 23.8e6
DUPLEX = 0.98
GLOO = HostLink(GOODPUT, latency_s=7.5e-3 / 6, duplex=DUPLEX)
MPI = HostLink(GOODPUT, latency_s=42.4e-3 / 6, duplex=DUPLEX)
MPI_WAITS = 4
SERVERS = HostLink(GOODPUT, latency_s=1.2e-3 / 2, duplex=DUPLEX)
SLOW_SERVERS = HostLink(GOODPUT / 2, latency_s=1.2e-3 / 2, duplex=DUPLEX)
SLOW_GLOO = HostLink(GOODPUT / 2, latency_s=7.5e-3 / 6, duplex=DUPLEX)


def test_doctests() -> None:
    assert doctest.testmod(simulate) == (0, 6)


@pytest.mark.parametrize(
    ("megabytes", "gloo_s", "mpi_s", "helpers_s"),
    [(5, 0.3486, 0.5307, 0.2247), (25, 1.643, 1.749, 1.065), (100, 6.944, 6.704, 4.230)],
)
def test_three_methods_within_a_tenth_of_the_measured_times(
    megabytes: int, gloo_s: float, mpi_s: float, helpers_s: float
) -> None:
    sums = [Sum(megabytes * 1_000_000)]
    assert ring(sums, Cluster(4, GLOO)) == pytest.approx([gloo_s], rel=0.10)
    assert ring(sums, Cluster(4, MPI), waits=MPI_WAITS) == pytest.approx([mpi_s], rel=0.10)
    assert sharded(sums, Cluster(4, SERVERS, helpers=4), Window(), level=False) == pytest.approx([helpers_s], rel=0.10)


# The prototype that was measured cut all shards in chunks of one size, hence level=False above and here.
@pytest.mark.parametrize(("helpers", "measured_s"), [(0, 1.630), (1, 1.592), (2, 1.470), (4, 1.065)])
def test_shards_on_workers_and_on_some_helpers_within_a_tenth_of_the_measured_times(
    helpers: int, measured_s: float
) -> None:
    ends = sharded([Sum(25_000_000)], Cluster(4, SERVERS, helpers=helpers), Window(), level=False)
    assert ends == pytest.approx([measured_s], rel=0.10)


@pytest.mark.parametrize(("helpers", "measured_s"), [(0, 1.889), (4, 1.799), (8, 1.140)])
def test_eight_workers_within_a_tenth_of_the_measured_times(helpers: int, measured_s: float) -> None:
    ends = sharded([Sum(12_500_000)], Cluster(8, SLOW_SERVERS, helpers=helpers), Window(), level=False)
    assert ends == pytest.approx([measured_s], rel=0.10)
    assert ring([Sum(12_500_000)], Cluster(8, SLOW_GLOO)) == pytest.approx([1.880], rel=0.10)


# Times of the engine, from benchmarks/allreduce/README.md.
@pytest.mark.parametrize(
    ("workers", "helpers", "megabytes", "measured_s"),
    [
        (4, 4, 25, 1.076),
        (4, 4, 100, 4.240),
        (4, 2, 25, 1.283),
        (4, 1, 25, 1.432),
        (4, 0, 25, 1.605),
        (8, 8, 12.5, 1.133),
    ],
)
def test_the_engine_within_a_tenth_of_the_measured_times(
    workers: int, helpers: int, megabytes: float, measured_s: float
) -> None:
    cluster = Cluster(workers, SERVERS if workers == 4 else SLOW_SERVERS, helpers=helpers)
    window = Window() if workers == 4 else Window(chunks=3)
    assert sharded([Sum(int(megabytes * 1e6))], cluster, window) == pytest.approx([measured_s], rel=0.10)


@pytest.mark.parametrize(("workers", "helpers"), [(4, 1), (4, 2), (4, 3), (8, 2), (8, 4), (8, 7)])
def test_level_shards_reach_the_bound_that_chunks_of_one_size_miss(workers: int, helpers: int) -> None:
    sums, cluster = [Sum(50_000_000)], Cluster(workers, SERVERS, helpers=helpers)
    bound_s = busiest_share(workers, helpers) * 50_000_000 / (GOODPUT * DUPLEX)
    (level_s,), (one_size_s,) = sharded(sums, cluster, Window()), sharded(sums, cluster, Window(), level=False)
    assert bound_s <= level_s <= bound_s / 0.98
    assert one_size_s > 1.05 * level_s


@pytest.mark.parametrize("workers", [2, 4, 8])
@pytest.mark.parametrize("helpers", [0, 1, 2, 4, 8])
@pytest.mark.parametrize("message_s", [0.0, 5e-5])
def test_one_host_of_each_kind_represents_all(workers: int, helpers: int, message_s: float) -> None:
    # If helpers outnumber workers, their results need not wait for the whole round as they do here: 5 %.
    within = 0.02 if helpers <= workers else 0.06
    cluster = Cluster(workers, HostLink(GOODPUT, 6e-4, message_s), helpers=helpers)
    assert sharded([Sum(3_000_000)], cluster, Window())[0] == pytest.approx(
        sum_seconds(3_000_000, cluster, Window()), rel=within
    )


@pytest.mark.parametrize("window", [Window(chunks=3), Window(16 << 10, 3), Window(8 << 10, 8)])
@pytest.mark.parametrize(("workers", "helpers"), [(4, 0), (4, 2), (4, 4), (8, 4)])
def test_one_host_of_each_kind_represents_all_with_other_windows(window: Window, workers: int, helpers: int) -> None:
    cluster = Cluster(workers, HostLink(GOODPUT, 6e-4), helpers=helpers)
    assert sharded([Sum(3_000_000)], cluster, window)[0] == pytest.approx(
        sum_seconds(3_000_000, cluster, window), rel=0.02
    )


def test_a_window_too_small_for_the_latency_starves_the_link() -> None:
    cluster = Cluster(4, HostLink(GOODPUT, latency_s=5e-3), helpers=4)
    times = [sharded([Sum(10_000_000)], cluster, Window(chunks=chunks))[0] for chunks in (1, 2, 4, 8)]
    assert times == sorted(times, reverse=True)
    assert times[0] > 2.5 * times[-1]


def test_a_bucket_of_one_round_goes_up_and_comes_back_and_a_second_one_overlaps() -> None:
    cluster = Cluster(2, HostLink(32768), helpers=2)
    assert sharded([Sum(65536)], cluster, Window(), level=False) == (4.0,)
    assert sharded([Sum(65536), Sum(65536)], cluster, Window(), level=False) == (4.0, 6.0)


def test_a_sum_is_later_than_its_bytes_need_by_one_round_of_chunks() -> None:
    # 2 s for the bytes; a round is two chunks of 4 KiB.
    assert sharded([Sum(65536)], Cluster(2, HostLink(32768), helpers=2), Window()) == (2.25,)


def test_a_sum_waits_until_its_bucket_is_ready_and_for_those_before_it() -> None:
    link = HostLink(100, latency_s=1)
    assert ring([Sum(200), Sum(200, ready_s=100)], Cluster(2, link)) == (4.0, 104.0)
    assert ring([Sum(200, ready_s=10), Sum(200)], Cluster(2, link)) == (14.0, 18.0)


def test_a_lone_worker_has_its_sum_when_it_is_ready() -> None:
    cluster = Cluster(1, HostLink(1), helpers=3)
    assert sharded([Sum(100, ready_s=2)], cluster, Window()) == ring([Sum(100, ready_s=2)], cluster) == (2.0,)
    assert tree([Sum(100, ready_s=2)], cluster) == (2.0,)
    assert sharded([], cluster, Window()) == ring([], cluster) == ()
    assert sharded([Sum(0)], Cluster(4, HostLink(1)), Window()) == (0.0,)


def test_ranks_of_a_host_sum_inside_first() -> None:
    alone = Cluster(4, HostLink(1e8))
    shared = Cluster(4, HostLink(1e8), ranks_per_host=8, inside=HostLink(1e9))
    for method in (lambda cluster: ring([Sum(1 << 20)], cluster), lambda c: sharded([Sum(1 << 20)], c, Window())):
        assert method(shared)[0] == pytest.approx(method(alone)[0] + 2 * (7 / 8) * (1 << 20) / 1e9)


def test_a_tree_has_few_steps_and_sends_more() -> None:
    link = HostLink(100, latency_s=1)
    # 1,024 workers: 20 steps instead of 2,046, and two bytes for each byte of the bucket.
    assert tree([Sum(100)], Cluster(1024, link)) == (22.0,)
    assert tree([Sum(100)], Cluster(2, link)) == (3.0,) == ring([Sum(100)], Cluster(2, link))


def test_thousands_of_hosts_cost_no_more_than_two() -> None:
    cluster = Cluster(2048, HostLink(12.5e9, 2e-5, 1e-6), helpers=2048)
    (end_s,) = sharded([Sum(680_000_000)], cluster, Window())
    assert 680e6 / 12.5e9 < end_s < 3 * 680e6 / 12.5e9


@given(
    sizes=st.lists(st.integers(0, 3_000_000), max_size=4),
    workers=st.integers(1, 12),
    helpers=st.integers(0, 14),
    chunks=st.integers(1, 5),
    level=st.booleans(),
)
def test_every_bucket_ends_and_none_beats_the_bound(
    sizes: list[int], workers: int, helpers: int, chunks: int, level: bool
) -> None:
    cluster = Cluster(workers, HostLink(1e8, 1e-4, 1e-6), helpers=helpers)
    ends = sharded([Sum(size) for size in sizes], cluster, Window(chunks=chunks), level=level)
    assert len(ends) == len(sizes)
    for index, end in enumerate(ends):
        # Few servers sum a small bucket, so the bound of a large one does not apply.
        total = sum(sizes[: index + 1]) if sizes[index] else 0
        assert end >= 0.999 * min(1.0, busiest_share(workers, helpers)) * total / 1e8


def test_impossible_sums_are_refused() -> None:
    with pytest.raises(ParallelError, match="neither is negative"):
        Sum(-1)
