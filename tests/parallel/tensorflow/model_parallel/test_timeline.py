"""`SMP_TIMELINE` shows the parts of a step: the segments that each rank runs, and the tensors that it receives."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from herringbone_parallel.core.pipeline.trace import read_trace
from tests.parallel.tensorflow.ranks import RankFailedError, Ranks

pytestmark = pytest.mark.tensorflow


@pytest.mark.parametrize("pipeline", ["simple", "interleaved"])
def test_a_step_runs_each_segment_once_per_microbatch(ranks: Ranks, tmp_path: Path, pipeline: str) -> None:
    variables = ranks.model_parallel(partitions=2, microbatches=4, pipeline=pipeline)
    path = tmp_path / "traces" / "timeline.json"
    answers = ranks.run("timelines.train", 2, False, SMP_TIMELINE=str(path), **variables)
    # For each microbatch the first rank receives a gradient and a loss, the second rank an activation.
    assert answers == [(1, 3 * 4 * 2), (1, 3 * 4)]
    assert [file.name for file in path.parent.iterdir()] == ["timeline.json"]
    events = read_trace(path)
    for rank, step in itertools.product(range(2), (1, 2, 3)):
        own_events = sorted((e for e in events if (e.rank, e.step) == (rank, step)), key=lambda event: event.start_s)
        assert all(one.end_s <= other.start_s for one, other in itertools.pairwise(own_events)), "one at a time"
        ran = [(event.phase, event.microbatch) for event in own_events if event.phase != "weight"]
        # With `interleaved`, the last rank runs forward and backward in one segment.
        phases = ["forward"] if (pipeline, rank) == ("interleaved", 1) else ["backward", "forward"]
        assert sorted(ran) == [(what, number) for what in phases for number in range(4)]
        if pipeline == "simple":
            assert [what for what, _ in ran] == ["forward"] * 4 + ["backward"] * 4
    for number in range(4):
        event_of = {
            (event.rank, event.phase): event for event in events if (event.step, event.microbatch) == (3, number)
        }
        assert event_of[1, "forward"].start_s >= event_of[0, "forward"].end_s, (
            "the data came from rank 0, by the same clock"
        )
        last = event_of[1, "forward" if pipeline == "interleaved" else "backward"]
        assert event_of[0, "backward"].start_s >= last.end_s, "and its gradient went back"


@pytest.mark.parametrize(
    ("width", "first", "second"),
    [(6, [], [0, 1, 2, 3]), (12, [2, 3], [2, 3]), (48, [3], [3])],
    ids=["one by one", "three and one", "all at once"],
)
def test_gradients_of_weights_are_computed_for_groups(
    ranks: Ranks, tmp_path: Path, width: int, first: list[int], second: list[int]
) -> None:
    # A microbatch keeps 4 x width numbers for a weight of width x width.
    path = tmp_path / "timeline.json"
    variables = ranks.model_parallel(partitions=2, microbatches=4)
    ranks.run("timelines.train", 2, False, width, SMP_TIMELINE=str(path), **variables)
    ran = [(event.rank, event.step, event.microbatch) for event in read_trace(path) if event.phase == "weight"]
    # With groups of one, the first rank computes its gradients as part of the backward: no rank waits for that segment.
    wanted = {0: first, 1: second}
    assert sorted(ran) == [(rank, step, last) for rank in range(2) for step in (1, 2, 3) for last in wanted[rank]]


def test_a_step_that_fails_leaves_what_each_rank_had(ranks: Ranks, tmp_path: Path) -> None:
    variables = ranks.model_parallel(partitions=2, microbatches=4)
    with pytest.raises(RankFailedError, match="boom"):
        ranks.run("timelines.train", 2, True, SMP_TIMELINE=str(tmp_path / "timeline.json"), **variables)
    for rank in range(2):
        assert {event.rank for event in read_trace(tmp_path / f"timeline.rank{rank}.json")} == {rank}


def test_a_folder_that_cannot_be_made_is_named(ranks: Ranks, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    path = str(tmp_path / "file" / "timeline.json")
    with pytest.raises(RankFailedError, match=r"SMP_TIMELINE=.*Name a file in a folder that can be written"):
        ranks.run("timelines.train", 1, False, SMP_TIMELINE=path, **ranks.model_parallel(partitions=1))
