"""When activations are in the device's memory: order of tasks, horizon, and the peak next to the schedule's own."""

from __future__ import annotations

import pytest

from herringbone_parallel.core.pipeline.offloading import Task, due, peak, task_order
from herringbone_parallel.core.pipeline.simulate import Segment, simulate


def tasks(text: str) -> list[Task]:
    phases = {"f": "forward", "b": "backward", "w": "weight"}
    return [Task(phases[word[0]], int(word[1:])) for word in text.split()]


def order(rank: int, pipeline: str, active: int = 6) -> tuple[Task, ...]:
    return task_order(rank=rank, partitions=4, microbatches=6, pipeline=pipeline, active=active)


@pytest.mark.parametrize(
    ("rank", "pipeline", "expected"),
    [
        (0, "simple", "f0 f1 f2 f3 f4 f5 b0 b1 b2 b3 b4 b5"),
        (3, "simple", "f0 f1 f2 f3 f4 f5 b0 b1 b2 b3 b4 b5"),
        (3, "interleaved", "f0 b0 f1 b1 f2 b2 f3 b3 f4 b4 f5 b5"),
        (0, "interleaved", "f0 f1 f2 f3 f4 f5 b0 b1 b2 b3 b4 b5"),
        (0, "_only_forward", "f0 f1 f2 f3 f4 f5"),
    ],
)
def test_the_order_of_a_ranks_tasks(rank: int, pipeline: str, expected: str) -> None:
    assert order(rank, pipeline) == tuple(tasks(expected))


def test_fewer_active_microbatches_bring_backwards_forward() -> None:
    assert order(0, "interleaved", active=3) == tuple(tasks("f0 f1 f2 b0 f3 b1 f4 b2 f5 b3 b4 b5"))


@pytest.mark.parametrize(
    ("done", "horizon", "expected"),
    [
        ("", 0, ()),
        ("", 2, ()),
        ("", 3, (0,)),
        ("f0 f1 f2", 0, (0,)),
        ("f0 f1 f2", 1, (0,)),
        ("f0 f1 f2", 2, (0, 1)),
        # The messages came in another order: what is done counts.
        ("f0 f1 f2 f3 f4", 1, (0, 1)),
        ("f0 f1 f2 b0 f3 b1 f4 b2 f5 b3 b4 b5", 4, ()),
    ],
)
def test_backwards_within_the_horizon_are_due(done: str, horizon: int, expected: tuple[int, ...]) -> None:
    assert due(tasks("f0 f1 f2 b0 f3 b1 f4 b2 f5 b3 b4 b5"), set(tasks(done)), horizon) == expected


@pytest.mark.parametrize(
    ("rank", "pipeline", "active", "peaks"),
    [
        # Horizon:                   none  0  1  2  4
        (0, "simple", 6, (6, 1, 2, 3, 5)),
        (3, "simple", 6, (6, 1, 2, 3, 5)),
        (0, "interleaved", 3, (3, 1, 2, 3, 3)),
        (3, "interleaved", 6, (1, 1, 1, 1, 1)),
    ],
)
def test_the_peak_next_to_the_schedules_own(rank: int, pipeline: str, active: int, peaks: tuple[int, ...]) -> None:
    tasks_of_rank = order(rank, pipeline, active)
    assert tuple(peak(tasks_of_rank, horizon) for horizon in (None, 0, 1, 2, 4)) == peaks
    stages = [Segment(stage, forward_s=1, backward_s=2, weight_s=1) for stage in range(4)]
    assert simulate([stages] * 6, pipeline=pipeline, active=active).peak_live[rank] == peaks[0]
