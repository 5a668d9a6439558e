"""Sums over all ranks: the same bits everywhere, equal to a sum in fp64 within rounding."""

import numpy as np
import pytest

from tests.parallel.reduce.conftest import KINDS

# (host of each rank, helpers)
LAYOUTS = {
    "one rank": ("a", 0),
    "one host": ("aaa", 0),
    "hosts": ("abc", 0),
    "helpers": ("abc", 3),
    "mixed": ("abcd", 1),
    "hosts of two": ("aabb", 0),
    "hosts of two, a helper": ("aabb", 1),
    "uneven hosts": ("aaabb", 2),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_ranks_get_the_same_sum(world, layout, kind):
    hosts, helpers = LAYOUTS[layout]
    sizes = [1, 5_000, 0, 300_001]

    def work(engine):
        buffers = [
            np.random.default_rng([engine.rank, size]).standard_normal(size).astype(np.float32) for size in sizes
        ]
        handles = [engine.all_reduce(buffer, op="average") for buffer in buffers]
        for handle in handles:
            handle.wait(20)
        return buffers

    sums = world(hosts, helpers, kind).run(work)
    for index, size in enumerate(sizes):
        rows = [
            np.random.default_rng([rank, size]).standard_normal(size).astype(np.float32) for rank in range(len(hosts))
        ]
        expected = np.mean(np.array(rows, np.float64), axis=0)
        for result in sums:
            assert result[index].tobytes() == sums[0][index].tobytes()
        np.testing.assert_allclose(sums[0][index], expected, atol=2e-6)
