"""Each public name of AWS's `smdistributed.dataparallel.tensorflow`, used on two ranks."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from tests.parallel.tensorflow.ranks import Ranks

pytestmark = pytest.mark.tensorflow


def test_ranks_know_who_they_are_and_join_once(ranks: Ranks) -> None:
    refused = "ParallelError: init() has been called already; the library is initialized once in a process"
    assert ranks.run("surface.ranks", 2) == [(0, 2, 0, 1, refused), (1, 2, 0, 1, refused)]
    same_host = ranks.run("surface.ranks", 2, HERRINGBONE_REDUCE_HOST="algo-1")
    assert [answer[2:4] for answer in same_host] == [(0, 2), (1, 2)]


def test_operations_on_single_tensors(ranks: Ranks) -> None:
    """Rank 0 has [1, 2] and rank 1 has [2, 4]; the result is the same in a graph and in eager code."""
    first, second = ranks.run("surface.single_tensors", 2)
    expected = {
        "average": [1.5, 3.0],
        "sum": [3.0, 6.0],
        "sparse": [[0.0, 0.0], [1.5, 3.0], [0.0, 0.0]],
        "oob": [1.5, 3.0],
        "fp16": [1.5, 3.0],
        "bfloat16": [1.5, 3.0],
        "min": [1.0, 2.0],
        "max": [2.0, 4.0],
        "count": [3, 6],
        "scalar": 1.5,
        "root": [2.0, 4.0],
    }
    for name, value in expected.items():
        assert first[name] == second[name] == [value, value], name
    for result in first["nan"]:
        assert math.isnan(result[0])
        assert result[1] == 3.0
    assert [first["overlap"], second["overlap"]] == [[[1.0, 2.0]] * 2, [[2.0, 4.0]] * 2]


def test_variables_are_broadcast_unless_they_are_equal(ranks: Ranks) -> None:
    (first, sent), (second, _) = ranks.run("surface.broadcast_of_variables", 2, [1, 2])
    [(root, _)] = ranks.run("surface.broadcast_of_variables", 1, [2])
    assert first == second
    assert first[0] == root[0]
    assert sent > 50 * 50 * 4
    (equal, sent), _ = ranks.run("surface.broadcast_of_variables", 2, [2, 2])
    assert equal[0] == root[0]
    assert sent < 2_000


@pytest.mark.parametrize("as_dense", [True, False])
def test_sparse_gradients(ranks: Ranks, as_dense: bool) -> None:
    """The ranks look up row 0 once, row 1 three times and row 2 once; the average of two ranks is half of that."""
    average = [[0.5, 0.5], [1.5, 1.5], [0.5, 0.5], [0.0, 0.0]]
    assert ranks.run("surface.sparse_gradients", 2, as_dense) == [[average, average]] * 2


def test_adam_takes_the_step_of_one_process_for_sparse_gradients(ranks: Ranks) -> None:
    assert max(ranks.run("surface.sparse_step_of_adam", 2)) < 1e-6


def test_sums_travel_while_the_backward_pass_runs(ranks: Ranks) -> None:
    for started, total in ranks.run("surface.overlap", 2, 8):
        assert total == 8
        assert started >= 3


def test_a_session_of_tensorflow_1(ranks: Ranks) -> None:
    """The result is rank 0's weights minus two steps of 0.1 times the average gradient [1.5, 4.5]."""
    for weight in ranks.run("surface.session_of_tensorflow_1", 2):
        np.testing.assert_allclose(weight, [1 - 0.3, 2 - 0.9], rtol=1e-6)


def test_a_saved_model_is_one_of_plain_keras(ranks: Ranks, tmp_path: Path) -> None:
    module, name, ours, plain = ranks.run("surface.saved_model", 2, str(tmp_path / "model.keras"))[0]
    assert module.startswith("keras.")
    assert name == "Adam"
    assert ours == plain
    assert ours[0] == 1  # iterations


@pytest.mark.parametrize("steps_before", [0, 2])
def test_a_distributed_optimizer_keeps_what_no_configuration_holds(ranks: Ranks, steps_before: int) -> None:
    for answers in ranks.run("optimizers.kept_settings", 2, steps_before):
        for name, (difference, original_unchanged) in answers.items():
            assert difference <= 1e-6, name
            assert original_unchanged, name


def test_an_optimizer_with_steps_counts_on_when_it_adds_up_passes(ranks: Ranks) -> None:
    assert ranks.run("optimizers.added_up_after_steps", 2) == [(2, 4), (2, 4)]


def test_ranks_skip_the_same_steps_when_one_overflows(ranks: Ranks) -> None:
    """The average gradient is 1.5, so the weight falls by 0.75 in the first and the last of three steps."""
    expected = [[0.25, 4.0], [0.25, 2.0], [-0.5, 2.0]]
    assert ranks.run("surface.loss_scale", 2) == [expected, expected]


def test_a_rank_may_trace_its_step_again_alone(ranks: Ranks) -> None:
    assert ranks.run("surface.traced_again_by_rank_1", 2) == [[-2.0], [-2.0]]


def test_gradients_of_tensors_and_nothing_piles_up(ranks: Ranks) -> None:
    """The gradient is twice the point times the average of 1 and 2."""
    expected = [[0.0], [3.0], [6.0], [9.0]]
    assert ranks.run("surface.gradients_of_tensors", 2) == [(expected, 1), (expected, 1)]
