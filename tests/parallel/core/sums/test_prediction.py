"""Predictions of step times: the schemes of a cluster, and the gradients that a step cannot hide."""

from __future__ import annotations

import doctest

import pytest

from herringbone_parallel.core.sums import prediction
from herringbone_parallel.core.sums.cluster import Cluster
from herringbone_parallel.core.sums.links import HostLink
from herringbone_parallel.core.sums.prediction import Predictor, evenly, predict_schemes
from herringbone_parallel.core.sums.simulate import Sum

SLOW = HostLink(23.8e6, latency_s=6e-4)


def test_doctests() -> None:
    assert doctest.testmod(prediction) == (0, 8)


def test_helpers_save_bytes_and_time() -> None:
    predictor = Predictor(evenly(25_000_000, 0.2), forward_s=0.1, backward_s=0.2)
    by_scheme = predict_schemes(predictor, Cluster(4, SLOW, helpers=4))
    assert list(by_scheme) == ["sharded", "ring", "tree", "helpers"]
    assert by_scheme["ring"].sent_bytes == 37_500_000
    assert by_scheme["helpers"].sent_bytes == 25_000_000
    assert by_scheme["ring"].sum_s / by_scheme["helpers"].sum_s == pytest.approx(1.5, rel=0.01)


def test_a_large_gradient_that_is_final_last_is_not_hidden() -> None:
    """A transformer uses its token embedding first, so that gradient becomes final last."""
    late = [*evenly(20_000_000, 3.9), Sum(5_000_000, 4.0)]
    cluster = Cluster(4, SLOW, helpers=4)
    step_s = Predictor(late, forward_s=2.0, backward_s=4.0).run("helpers", cluster).step_s
    assert step_s - 6.0 == pytest.approx(5e6 / 23.8e6, rel=0.05)
    even = Predictor(evenly(25_000_000, 4.0), forward_s=2.0, backward_s=4.0).run("helpers", cluster)
    assert even.step_s - 6.0 < 0.03


def test_several_ranks_on_a_host_sum_inside_first() -> None:
    cluster = Cluster(8, HostLink(1e9, 5e-5), ranks_per_host=8, inside=HostLink(1e10, 1e-5), helpers=8)
    predictor = Predictor(evenly(100_000_000, 0.04), forward_s=0.02, backward_s=0.04)
    steps = {scheme: one.step_s for scheme, one in predict_schemes(predictor, cluster).items()}
    assert steps["helpers"] < steps["sharded"] < steps["ring"] < steps["ring of all ranks"]
