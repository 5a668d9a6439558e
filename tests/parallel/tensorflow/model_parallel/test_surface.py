"""Each public name of AWS's `smdistributed.modelparallel.tensorflow`, used on two ranks."""

from __future__ import annotations

import numpy as np
import pytest

from tests.parallel.tensorflow.ranks import Ranks

pytestmark = pytest.mark.tensorflow


def test_ranks_groups_and_objects(ranks: Ranks) -> None:
    first, second = ranks.run("pipeline_surface.ranks", 2, **ranks.model_parallel(partitions=2))
    groups = [[0, 1], [0], [0, 1], [0, 1]]
    gathered = [{"from": 0}, {"from": 1}]
    assert first == ([0, 2, 0, 1, 0, 2, 0, 2, 0, 1, 1, 1], groups, gathered, "back")
    assert second == ([1, 2, 0, 1, 1, 2, 1, 2, 0, 1, 1, 1], [[0, 1], [1], *groups[2:]], gathered, [0, 1, 2])


def test_results_of_a_step(ranks: Ranks) -> None:
    for values, hooks in ranks.run("pipeline_surface.results", 2, **ranks.model_parallel(partitions=2, microbatches=2)):
        assert np.abs(values.pop("mean")).max() < 1e-6
        assert np.abs(values.pop("sum")).max() < 1e-6
        assert values == {
            "shapes": [[4, 3], [4, 3], [2, 2, 3]],
            "accumulated": [1.0, 1.0, 1.0],
            "whole": [2.0, 2.0, 2.0],
            "columns": [2, 2],
            "mean of counts": [2.0, 2.0],
            "no tensors": [["a name", "a name"], [3, 3]],
        }
        # Four layers on two partitions, each with a kernel and a bias.
        assert hooks == [(True, 4)]


def test_autograph_rewrites_no_method_of_a_result(ranks: Ranks) -> None:
    [names] = ranks.run("pipeline_surface.rewritten", 1, **ranks.model_parallel(partitions=1, microbatches=2))
    assert "a_caller" in names
    # All of these together would take half of a small script's first step.
    assert not names & {"reduce_mean", "reduce_sum", "merge", "concat", "stack", "accumulate", "_sum"}


def test_a_layer_need_not_know_its_outputs_shape(ranks: Ranks) -> None:
    answers = ranks.run("pipeline_surface.layer_without_output_shape", 2, **ranks.model_parallel(partitions=2))
    assert answers == [[[6.0, 6.0], [6.0, 6.0]]] * 2


def test_an_automatic_partition_frees_what_is_elsewhere_and_shares_out_the_rest(ranks: Ranks) -> None:
    variables = ranks.model_parallel(partitions=2, auto_partition=True)
    for held, own, everything, owners, counts in ranks.run("pipeline_surface.memory", 2, **variables):
        assert held == 2 * (6 * 6 + 6) * 4
        assert (own, everything, owners) == (4, 8, [0, 1])
        # The parameters and the weights of the whole model, which a script may set again.
        assert counts == (4 * (6 * 6 + 6), 8, True)


def test_gradients_are_there_one_by_one_for_who_asks(ranks: Ranks) -> None:
    answers = ranks.run(
        "pipeline_surface.gradients_one_by_one", 2, **ranks.model_parallel(partitions=2, microbatches=2)
    )
    # The embedding is on the first rank, a kernel and a bias are on the second; there are two steps.
    assert [[shape for _, shape in rank] for rank in answers] == [[[2, 11, 6]] * 2, [[2, 6, 6], [2, 6]] * 2]
    assert all(difference < 1e-7 for rank in answers for difference, _ in rank)


def test_a_signature_that_leaves_the_batch_open_is_traced_once(ranks: Ranks) -> None:
    variables = ranks.model_parallel(partitions=2, microbatches=2)
    for traces, shapes, message in ranks.run("pipeline_surface.input_signature", 2, **variables):
        assert (traces, shapes) == (1, [[4, 3], [8, 3]])
        assert "does not fit the tensors of a microbatch" in message


def test_a_gradient_that_the_step_changes_stays_that_of_its_variable(ranks: Ranks) -> None:
    first, second = ranks.run("pipeline_surface.changed_gradients", 2, **ranks.model_parallel(partitions=2))
    for wrong, errors, _ in (first, second):
        assert wrong == []
        assert len(errors) == 2
        assert all("the step cannot see which variable it is the gradient of" in error for error in errors)
    # The embedding is on the first rank, and its gradient stays sparse.
    assert (first[2], second[2]) == ([8], [])
