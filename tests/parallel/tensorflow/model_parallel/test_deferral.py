"""A gradient that was put off equals the sum of the gradients of the microbatches."""

from __future__ import annotations

import numpy as np
import pytest

from tests.parallel.tensorflow.ranks import Ranks

pytestmark = pytest.mark.tensorflow

LAYERS = [
    "dense",
    "dense of sequences",
    "sum of products",
    "convolution",
    "convolution of sequences",
    "convolution of volumes",
    "depthwise",
]


@pytest.mark.parametrize("layer", LAYERS)
def test_one_product_is_the_sum_over_microbatches(ranks: Ranks, layer: str) -> None:
    ((one_by_one, together),) = ranks.run("products.compare", 1, layer)
    np.testing.assert_allclose(together, one_by_one, rtol=1e-5, atol=1e-5)


def test_of_16_bits_those_are_put_off_that_hold_a_sum(ranks: Ranks) -> None:
    ((one_by_one, together),) = ranks.run("products.compare", 1, "dense", "mixed_bfloat16")
    np.testing.assert_allclose(together, one_by_one, rtol=2e-2, atol=2e-1)
    assert ranks.run("products.compare", 1, "dense", "mixed_float16") == [None]
