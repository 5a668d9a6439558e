"""Replicas of a pipeline: 2 partitions x 2 replicas train like one process on their joined batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.parallel.tensorflow.ranks import Ranks

pytestmark = pytest.mark.tensorflow

# For each model: (averaged by the script, in a graph). The last model has sparse gradients.
WAYS = {
    "batch norm": [(False, True), (True, True)],
    "dropout": [(False, True)],
    "tied": [(False, False), (True, True)],
}


@pytest.mark.parametrize("model", WAYS)
def test_replicas_are_one_process(ranks: Ranks, model: str) -> None:
    variables = ranks.model_parallel(partitions=2, microbatches=2)
    answers = ranks.run("hybrid.in_ways", 4, model, [0, 1, 0], WAYS[model], **variables)
    losses, gradients, weights = ranks.run("hybrid.alone", 1, model, 2, 2)[0]
    for number, way in enumerate(WAYS[model]):
        for replica in range(2):
            pipeline = [answers[rank][number] for rank in (2 * replica, 2 * replica + 1)]
            for ours, _, _ in pipeline:
                np.testing.assert_allclose(ours, losses[replica], rtol=0, atol=1e-6, err_msg=str(way))
            _same({**pipeline[0][1], **pipeline[1][1]}, gradients, f"gradients {way}")
            _same({**pipeline[0][2], **pipeline[1][2]}, weights[replica], f"weights {way}")


def test_a_script_for_horovod_serves_the_replicas(ranks: Ranks, tmp_path: Path) -> None:
    variables = ranks.model_parallel(partitions=2, microbatches=2, horovod=True)
    answers = ranks.run("hybrid.as_sagemaker_wrote_it", 4, str(tmp_path), **variables)
    assert [ranks_and_sizes for ranks_and_sizes, *_ in answers] == [
        (0, 2, 0, 2),
        (0, 2, 0, 2),
        (1, 2, 1, 2),
        (1, 2, 1, 2),
    ]
    for first, second in ((0, 2), (1, 3)):
        _, saved, restored = answers[first]
        for others in (restored, *answers[second][1:]):
            for ours, theirs in zip(saved, others, strict=True):
                np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_script_for_horovod_runs_on_one_replica_too(ranks: Ranks, partitions: int, tmp_path: Path) -> None:
    variables = ranks.model_parallel(partitions=partitions, microbatches=2, horovod=True)
    answers = ranks.run("hybrid.as_sagemaker_wrote_it", partitions, str(tmp_path), **variables)
    assert [ranks_and_sizes for ranks_and_sizes, *_ in answers] == [(0, 1, 0, 1)] * partitions


def test_replicas_that_are_not_averaged_are_named(ranks: Ranks) -> None:
    variables = ranks.model_parallel(partitions=2, microbatches=2, horovod=True)
    messages = ranks.run("hybrid.nobody_averages", 4, **variables)
    assert any("ParallelError: ranks 0 and 2 hold the same partition of two replicas" in text for text in messages)
    assert "nothing" not in messages


def test_a_dead_replica_is_named_within_5_seconds(ranks: Ranks) -> None:
    variables = ranks.model_parallel(partitions=2, microbatches=2, horovod=True)
    *others, dead = ranks.answers("hybrid.rank_3_dies", 4, **variables)
    assert dead == (False, "died")
    for ok, (text, seconds) in others:
        assert ok
        assert seconds < 5, text
    # Rank 1 is the replica of rank 3: it holds the same partition.
    assert "rank 3 on algo-4" in others[1][1][0]


def _same(ours: dict[int, Any], theirs: dict[int, Any], what: str) -> None:
    assert set(ours) == set(theirs), what
    for number, values in ours.items():
        np.testing.assert_allclose(values, theirs[number], rtol=0, atol=1e-6, err_msg=f"{what} {number}")
