from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.sums import cluster, links
from herringbone_parallel.core.sums.cluster import Cluster
from herringbone_parallel.core.sums.links import Cost, HostLink, Probe, fit, fit_shaped, host_link, next_probe

# 4 hosts at 200 Mbit/s: bytes, and the median seconds of an all-reduce.
GLOO = [(4e3, 0.0095), (1e5, 0.0115), (1e6, 0.0754), (5e6, 0.3486), (25e6, 1.643), (100e6, 6.944)]
HELPERS = [(4e3, 0.0015), (1e5, 0.0044), (1e6, 0.0592), (5e6, 0.2247), (25e6, 1.065), (100e6, 4.230)]


def test_doctests() -> None:
    assert doctest.testmod(links) == (0, 6)
    assert doctest.testmod(cluster) == (0, 1)


def test_fits_of_measured_methods_match_fits_by_hand() -> None:
    cost = fit(GLOO)
    assert (cost.alpha_s, cost.beta_s) == pytest.approx((0.0075, 0.0654e-6), rel=0.03)
    cost = fit(HELPERS)
    assert (cost.alpha_s, cost.beta_s) == pytest.approx((0.0012, 0.0424e-6), rel=0.05)


@given(alpha=st.floats(1e-6, 1e-1), beta=st.floats(1e-11, 1e-6))
def test_a_cost_is_fitted_exactly_to_its_own_points(alpha: float, beta: float) -> None:
    cost = Cost(alpha, beta)
    fitted = fit([(size, cost.seconds(size)) for size in (4e3, 3e4, 2.5e5, 2e6, 1.6e7)])
    assert (fitted.alpha_s, fitted.beta_s) == pytest.approx((alpha, beta), rel=1e-3, abs=1e-12)


def test_a_cost_is_never_negative() -> None:
    assert fit([(1, 1.0), (10, 20.0)]).alpha_s == 0
    assert fit([(1, 2.0), (10, 1.0)]).beta_s == 0


def test_a_token_bucket_does_not_make_a_link_look_fast() -> None:
    """Four sums at 200 Mbit/s behind a bucket of 64 KB: the first points ran at the speed of the host."""
    points = [(4 << 10, 0.00018), (32 << 10, 0.00086), (256 << 10, 0.0103)]
    cost = fit_shaped(points)
    assert fit(points).beta_s == pytest.approx(3.3e-8, rel=0.2)
    assert cost.beta_s == pytest.approx(0.0103 / (256 << 10), rel=0.01)
    assert 0 <= cost.alpha_s < 1e-4
    assert fit_shaped(HELPERS[:5]) == fit(HELPERS[:5])


def test_too_few_points_are_refused() -> None:
    with pytest.raises(ParallelError, match="two sizes"):
        fit([(100, 1.0), (100, 2.0)])
    with pytest.raises(ParallelError, match="times above 0"):
        fit([(100, 1.0), (200, 0.0)])
    with pytest.raises(ParallelError, match="measure larger sizes"):
        host_link(Cost(1, 0), share=1)


def probe_all(cost: Cost, budget_s: float = 1.0) -> list[int]:
    points: list[tuple[int, float]] = []
    while (probe := next_probe(points, budget_s=budget_s)) is not None:
        points.append((probe.size, cost.seconds(probe.size)))
    return [size for size, _ in points]


def test_a_fast_link_is_probed_until_the_rate_settles() -> None:
    assert probe_all(Cost(2e-5, 1e-10)) == [4 << 10, 32 << 10, 256 << 10]


def test_a_slow_link_is_probed_within_the_budget_but_twice_at_least() -> None:
    assert probe_all(Cost(0.0075, 0.0654e-6), budget_s=0.1) == [4 << 10, 32 << 10]
    assert probe_all(Cost(10, 1), budget_s=0.1) == [4 << 10, 32 << 10]


def test_a_size_without_time_for_repeats_is_measured_once() -> None:
    points = [(4 << 10, 0.0002), (32 << 10, 0.0013)]
    assert next_probe(points, budget_s=0.0625) == Probe(256 << 10, 3)
    assert next_probe(points, budget_s=0.025) == Probe(256 << 10, 1)
    assert next_probe(points, budget_s=0.02) is None


def test_a_rate_that_never_settles_ends_with_the_largest_size() -> None:
    points: list[tuple[int, float]] = []
    while (probe := next_probe(points, budget_s=1e9)) is not None:
        points.append((probe.size, 1e-9 * probe.size**1.5))
    assert points[-1][0] == 128 << 20
    assert next_probe(points[:-2], budget_s=1e9) == Probe(16 << 20, 3)


def test_impossible_links_are_refused() -> None:
    with pytest.raises(ParallelError, match="duplex"):
        HostLink(1e9, duplex=0)
    with pytest.raises(ParallelError, match="neither is negative"):
        Cost(-1, 0)
    with pytest.raises(ParallelError, match="at least 1 worker"):
        Cluster(workers=0, link=HostLink(1))
    with pytest.raises(ParallelError, match="the link between them"):
        Cluster(workers=1, link=HostLink(1), ranks_per_host=2)
