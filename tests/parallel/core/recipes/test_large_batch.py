from __future__ import annotations

import pytest

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.recipes.large_batch import (
    aggregation_for,
    scale_batch_norm_momentum,
    scale_learning_rate,
)


def test_learning_rates() -> None:
    assert scale_learning_rate(0.1, batch=1024, base_batch=32) == pytest.approx(3.2)
    assert scale_learning_rate(0.1, batch=1024, base_batch=64, rule="sqrt") == pytest.approx(0.4)
    assert scale_learning_rate(0.1, batch=64, base_batch=64) == 0.1
    with pytest.raises(ParallelError, match="rule 'cubic'"):
        scale_learning_rate(0.1, batch=64, base_batch=64, rule="cubic")


def test_a_running_average_forgets_as_much_in_one_large_step_as_in_the_small_ones_together() -> None:
    kept = 1.0
    for _ in range(32):
        kept *= 1 - 0.1
    assert 1 - scale_batch_norm_momentum(0.1, batch=32 * 8, base_batch=8) == pytest.approx(kept)
    with pytest.raises(ParallelError, match="momentum 1"):
        scale_batch_norm_momentum(1, batch=8, base_batch=8)


def test_a_global_batch_is_made_of_whole_ranks() -> None:
    assert [aggregation_for(64, rank_batch=8, ranks=ranks) for ranks in (1, 2, 4, 8)] == [8, 4, 2, 1]
    with pytest.raises(ParallelError, match=r"a global batch of 64 cannot be made of 3 ranks x 8 examples = 24"):
        aggregation_for(64, rank_batch=8, ranks=3)
    with pytest.raises(ParallelError, match="16 ranks x 8 examples = 128"):
        aggregation_for(64, rank_batch=8, ranks=16)
    with pytest.raises(ParallelError, match="at least 1"):
        aggregation_for(64, rank_batch=0, ranks=1)
