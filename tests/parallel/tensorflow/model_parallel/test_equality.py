"""A model that is trained over the ranks of a pipeline equals the same model trained in one process.

The tests compare gradients, loss, outputs and weights of five steps, for 16 kinds of models. The microbatches are the
same, so the figures are equal except for the last bits of sums in another order.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.parallel.tensorflow.ranks import Ranks

pytestmark = pytest.mark.tensorflow

MODELS = [
    *(
        "conv",
        "dense",
        "residual",
        "reused",
        "reused state",
        "two inputs",
        "dict output",
        "batch norm",
        "lstm",
        "attention",
        "tied",
        "functional",
    ),
    *("sequential", "nested", "dropout", "branches"),
]
# For each number of partitions, two placements: the partition of each slot of a model. The second placement comes back
# to a rank that was left.
PLACEMENTS = {2: [[0, 1, 1, 1], [1, 0, 1, 0]], 3: [[0, 1, 2, 2], [2, 0, 1, 2]]}
MICROBATCHES = (1, 2, 4)
WAYS = [(pipeline, microbatches) for pipeline in ("simple", "interleaved") for microbatches in MICROBATCHES]


@pytest.mark.parametrize("partitions", [2, 3])
@pytest.mark.parametrize("model", MODELS)
def test_a_pipeline_is_one_process(ranks: Ranks, model: str, partitions: int) -> None:
    placements, variables = PLACEMENTS[partitions], ranks.model_parallel(partitions=partitions)
    answers = ranks.run("pipelines.in_all_ways", partitions, model, placements, WAYS, **variables)
    expected = dict(zip(MICROBATCHES, _alone(ranks, model), strict=True))
    for number, placement in enumerate(placements):
        for way, (pipeline, microbatches) in enumerate(WAYS):
            ours = [rank[number][way] for rank in answers]
            compare(ours, expected[microbatches], f"{pipeline} {microbatches} {placement}")


def test_a_step_outside_of_a_function_is_the_same(ranks: Ranks) -> None:
    variables = ranks.model_parallel(partitions=2, microbatches=2)
    answers = ranks.run("pipelines.together", 2, "residual", [0, 1, 0], False, **variables)
    compare(answers, ranks.run("pipelines.alone", 1, "residual", [(8, 2)])[0][0], "eager")


@cache
def _alone(ranks: Ranks, model: str) -> Any:
    batches = [(2 * microbatches, microbatches) for microbatches in MICROBATCHES]
    return ranks.run("pipelines.alone", 1, model, batches)[0]


def compare(answers: list[Any], expected: Any, what: str) -> None:
    weights: dict[str, Any] = {}
    for rank in answers:
        _close(rank["losses"], expected["losses"], what)
        for ours, theirs in zip(rank["outputs"], expected["outputs"], strict=True):
            for output, wanted in zip(ours, theirs, strict=True):
                _close(output, wanted, what)
        for ours, theirs in zip(rank["gradients"], expected["gradients"], strict=True):
            for name, gradient in ours.items():
                _close(gradient, theirs[name], f"{what} {name}")
        assert not set(weights) & set(rank["weights"]), "a variable is on one rank only"
        weights.update(rank["weights"])
    assert set(weights) == set(expected["weights"])
    for name, weight in weights.items():
        _close(weight, expected["weights"][name], f"{what} {name}")


def _close(ours: Any, theirs: Any, what: str) -> None:
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6, err_msg=what)
