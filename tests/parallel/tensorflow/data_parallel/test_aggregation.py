"""`aggregation_frequency` of the job: n backward passes and one step equal one step on a batch n times as large."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.parallel.tensorflow.ranks import Ranks

pytestmark = pytest.mark.tensorflow

TWO = {"HERRINGBONE_AGGREGATION_FREQUENCY": "2"}


SUMMED = {"HERRINGBONE_AVERAGE_AGGREGATED_GRADIENTS": "false"}


# Half the rate where the gradients of two backward passes are summed: a sum is twice the average.
@pytest.mark.parametrize(
    ("program", "args", "settings"),
    [
        ("with_tape", [False, 0.05], {}),
        ("with_tape", [True, 0.025], SUMMED),
        ("with_optimizer", [0.05], {}),
        ("with_optimizer", [0.025], SUMMED),
    ],
)
def test_two_backwards_and_a_step_are_one_step_on_twice_the_batch(
    ranks: Ranks, program: str, args: list[Any], settings: dict[str, str]
) -> None:
    [expected] = ranks.run("aggregation.alone", 1)
    (first, sent), (second, _) = ranks.run(f"aggregation.{program}", 2, *args, **TWO, **settings)
    np.testing.assert_allclose(first, expected, rtol=0, atol=1e-6)
    assert first.tobytes() == second.tobytes()
    # The 9,637 gradients of two steps, and a few bytes for the comparison of ranks. Those of four passes would be more.
    assert 2 * 9_637 * 4 < sent < 3 * 9_637 * 4


def test_horovods_backward_passes_per_step_adds_up_unless_told_to_average(ranks: Ranks) -> None:
    averaged, _ = ranks.run("aggregation.with_horovod", 2, True)
    added, _ = ranks.run("aggregation.with_horovod", 2, False)
    np.testing.assert_allclose(averaged, added, rtol=0, atol=1e-6)
