from __future__ import annotations

import pytest

from tests.parallel.tensorflow.ranks import Ranks

pytestmark = pytest.mark.tensorflow


def test_what_the_kernel_takes_leaves_at_once_and_the_rest_follows_in_order(ranks: Ranks) -> None:
    left, came = ranks.run("transports.small_and_large", 1)[0]
    # Behind one that is too large for the kernel, all wait for their turn.
    assert left == [True, True, False, False, False]
    assert came == [True] * 5
