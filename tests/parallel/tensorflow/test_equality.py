"""Models that are trained over the ranks of a pipeline are the same models trained in one process.

Gradients, loss, outputs and weights of five steps, for 15 kinds of models. The microbatches are the same, so the
figures are too, to the last bits of what is added up in another order.
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
        "tied",
        "functional",
    ),
    *("sequential", "nested", "dropout", "branches"),
]
# By partitions: the partition of each place of a model; the second of each comes back to a rank that was left.
PLACEMENTS = {2: [[0, 1, 1, 1], [1, 0, 1, 0]], 3: [[0, 1, 2, 2], [2, 0, 1, 2]]}


@pytest.mark.parametrize("pipeline", ["simple", "interleaved"])
@pytest.mark.parametrize("partitions", [2, 3])
@pytest.mark.parametrize("model", MODELS)
def test_a_pipeline_is_one_process(ranks: Ranks, model: str, partitions: int, pipeline: str) -> None:
    places = PLACEMENTS[partitions] if pipeline == "simple" else PLACEMENTS[partitions][::-1]
    settings = [(pipeline, microbatches, places[number % 2]) for number, microbatches in enumerate((1, 2, 4))]
    variables = ranks.model_parallel(partitions=partitions)
    told = ranks.run("pipelines.in_many_ways", partitions, model, settings, **variables)
    for number, (_, microbatches, placement) in enumerate(settings):
        expected = _alone(ranks, model, microbatches)
        compare([rank[number] for rank in told], expected, f"{microbatches} {placement}")


def test_a_step_outside_of_a_function_is_the_same(ranks: Ranks) -> None:
    told = ranks.run(
        "pipelines.together", 2, "residual", [0, 1, 0], False, **ranks.model_parallel(partitions=2, microbatches=2)
    )
    compare(told, _alone(ranks, "residual", 2), "eager")


@cache
def _alone(ranks: Ranks, model: str, microbatches: int) -> Any:
    return ranks.run("pipelines.alone", 1, model, microbatches)[0]


def compare(told: list[Any], expected: Any, what: str) -> None:
    weights: dict[str, Any] = {}
    for rank in told:
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
