"""`SMP_TIMELINE`: one trace of the job that agrees with the schedules, and the traces of a failed step."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from herringbone_parallel.core.pipeline.trace import read_trace, side_by_side
from tests.parallel.torch.ranks import RankFailedError, Ranks

FOUR = {"partitions": 2, "microbatches": 4}


@pytest.fixture
def timed_ranks(tmp_path: Path) -> Any:
    """Ranks with the variable in their environment."""
    pool = Ranks(FOLDER=str(tmp_path), SMP_TIMELINE="$FOLDER/traces/timeline.json")
    yield pool
    pool.close()


def train(fails: bool) -> None:
    import herringbone_parallel.torch.model_parallel.api as smp

    model = smp.DistributedModel(nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6)))

    @smp.step
    def step(inputs: torch.Tensor) -> torch.Tensor:
        loss = model(inputs).sum()
        model.backward(loss)
        if fails and smp.rank() == 1:
            raise ZeroDivisionError("boom")
        return loss

    for _ in range(3):
        step(torch.ones(8, 6))
    smp.shutdown()


def test_one_file_holds_the_work_of_every_rank(timed_ranks: Ranks, tmp_path: Path) -> None:
    timed_ranks.run(train, {**FOUR, "pipeline": "simple"}, False)
    assert [path.name for path in (tmp_path / "traces").iterdir()] == ["timeline.json"]
    events = read_trace(tmp_path / "traces" / "timeline.json")
    for rank in range(2):
        for step in (1, 2, 3):
            events_of_rank = sorted(
                (e for e in events if (e.rank, e.step) == (rank, step)), key=lambda event: event.start_s
            )
            assert all(one.end_s <= other.start_s for one, other in itertools.pairwise(events_of_rank)), "one at a time"
            phases = [event.phase for event in events_of_rank]
            if step > 1:
                # In the first step the microbatches run one after another.
                assert phases == sorted(phases, reverse=True), "simple: all forwards, then all backwards"
            assert {(e.phase, e.microbatch) for e in events_of_rank} == {
                (w, m) for w in ("forward", "backward") for m in range(4)
            }
    step = [event for event in events if event.step == 3]
    assert "idle, rank 1" in side_by_side(step, step)


def test_ranks_share_a_clock(timed_ranks: Ranks, tmp_path: Path) -> None:
    timed_ranks.run(train, {**FOUR, "pipeline": "interleaved"}, False)
    events = [event for event in read_trace(tmp_path / "traces" / "timeline.json") if event.step == 3]
    for microbatch in range(4):
        of = {
            (event.rank, event.phase): event
            for event in sorted(events, key=lambda event: event.start_s)
            if event.microbatch == microbatch
        }
        assert of[1, "forward"].end_s >= of[0, "forward"].start_s, "the data came from rank 0"
        assert of[0, "backward"].end_s >= of[1, "backward"].start_s, "and its gradient went back"


def test_a_failed_step_leaves_a_file_of_each_rank(timed_ranks: Ranks, tmp_path: Path) -> None:
    with pytest.raises(RankFailedError, match="boom"):
        timed_ranks.run(train, dict(FOUR), True)
    names = sorted(path.name for path in (tmp_path / "traces").iterdir())
    assert names == ["timeline.rank0.json", "timeline.rank1.json"]
    for rank, name in enumerate(names):
        assert {event.rank for event in read_trace(tmp_path / "traces" / name)} == {rank}


def test_an_error_names_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    pool = Ranks(SMP_TIMELINE=str(tmp_path / "file" / "timeline.json"))
    with pytest.raises(RankFailedError, match=r"SMP_TIMELINE=.*Name a file in a folder that can be written"):
        pool.run(train, {"partitions": 1, "microbatches": 4}, False)
    pool.close()
