"""Ranks that each train on a part of the batch equal one process that trains on the whole batch."""

from __future__ import annotations

import numpy as np
import pytest

from tests.parallel.tensorflow.ranks import Ranks

pytestmark = pytest.mark.tensorflow


@pytest.mark.parametrize("mode", ["eager", "graph", "fit"])
def test_two_ranks_are_one_process(ranks: Ranks, mode: str) -> None:
    [(losses, weights)] = ranks.run("training.alone", 1, mode)
    first, second = ranks.run("training.together", 2, mode)
    np.testing.assert_allclose(first[0], losses, rtol=0, atol=1e-6)
    np.testing.assert_allclose(first[1], weights, rtol=0, atol=1e-6)
    assert first[0] == second[0]
    assert first[1].tobytes() == second[1].tobytes()


def test_two_ranks_and_a_helper_are_one_process(ranks: Ranks) -> None:
    [(losses, weights)] = ranks.run("training.alone", 1, "graph")
    with ranks.helper() as variables:
        first, second = ranks.run("training.together", 2, "graph", **variables)
    np.testing.assert_allclose(first[0], losses, rtol=0, atol=1e-6)
    np.testing.assert_allclose(first[1], weights, rtol=0, atol=1e-6)
    assert first[1].tobytes() == second[1].tobytes()


def test_a_bucket_for_each_gradient_gives_the_same_sums(ranks: Ranks) -> None:
    one, _ = ranks.run("training.together", 2, "fit", 25)
    many, _ = ranks.run("training.together", 2, "fit", 128 / (1 << 20))
    assert many[1].tobytes() == one[1].tobytes()
    # 6 gradients in 5 steps. The last bias has fewer than 128 bytes, so it shares a bucket with its kernel.
    assert many[2] - one[2] == 5 * 4


def test_on_a_wire_of_16_bits_half_the_bytes_travel(ranks: Ranks) -> None:
    (exact, sent), _ = ranks.run("aggregation.with_tape", 2, True, 0.05)
    (first, fewer), (second, _) = ranks.run("aggregation.with_tape", 2, True, 0.05, HERRINGBONE_REDUCE_WIRE="fp16")
    # Both runs also compare gradients and weights, which takes a few hundred bytes.
    assert fewer < 0.52 * sent
    assert first.tobytes() == second.tobytes()
    np.testing.assert_allclose(first, exact, rtol=0, atol=1e-3)
    assert (first != exact).any()
