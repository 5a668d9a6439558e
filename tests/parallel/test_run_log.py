"""The log of a training, with a simulated clock."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from herringbone_contract.errors import ParallelError
from herringbone_contract.events.mllog import parse
from herringbone_parallel.run_log import RunLog


def ticking(start: float = 100.0) -> Iterator[float]:
    """Return a clock that advances by a second with each reading."""
    return map(float, count(int(start)))


def run(accuracies: list[float], **settings: object) -> tuple[list[tuple[str, object]], RunLog]:
    lines: list[str] = []
    ticks = ticking()
    log = RunLog(write=lines.append, clock=lambda: next(ticks), **settings)
    with log.interval("init"):
        log.point("seed", 3)
    for epoch, accuracy in enumerate(accuracies, 1):
        with log.epoch(epoch):
            log.count(10)
            log.count(20)
        if log.evaluation("eval_accuracy", accuracy, epoch):
            break
    return lines, log


def test_the_lines_of_a_run() -> None:
    lines, log = run([0.5, 0.9, 0.95], target=0.9, alone=20.0, ranks=2)
    log.finish(require_target=True)
    events = [parse(line) for line in lines]
    assert [(event.key, event.value, event.time_ms // 1000) for event in events] == [
        ("run_start", None, 100),
        ("init_start", None, 101),
        ("seed", 3, 102),
        ("init_stop", None, 103),
        ("epoch_start", None, 104),
        ("epoch_stop", None, 107),
        ("eval_accuracy", 0.5, 108),
        ("epoch_start", None, 109),
        ("epoch_stop", None, 112),
        ("eval_accuracy", 0.9, 113),
        ("run_stop", None, 114),
        # 30 samples/s of training, 2 ranks x 20 would be perfect, and 13 s from the start to the target.
        ("tracked_stats", {"throughput": 30.0, "scaling_efficiency": 0.75, "seconds_to_target": 13.0}, 115),
    ]
    assert events[5].metadata == {"epoch_num": 1}
    assert events[-2].metadata == {"status": "success"}


def test_a_target_that_is_missed_fails_the_job_only_when_asked_to() -> None:
    lines, log = run([0.5, 0.8, 0.7], target=0.9)
    assert log.finish() == {"throughput": 30.0}
    assert parse(lines[-2]).metadata == {"status": "aborted"}
    lines, log = run([0.5, 0.8, 0.7], target=0.9)
    with pytest.raises(ParallelError, match=r"the target of 0.9 was never reached: the best was 0.8"):
        log.finish(require_target=True)
    assert parse(lines[-1]).key == "tracked_stats"
    with pytest.raises(ParallelError, match="no evaluation took place"):
        run([], target=0.9)[1].finish(require_target=True)


def test_lower_values_may_be_better() -> None:
    assert "seconds_to_target" in run([3.0, 1.9], target=2.0, lower_is_better=True)[1].finish()
    with pytest.raises(ParallelError, match=r"the best was 2.5"):
        run([3.0, 2.5], target=2.0, lower_is_better=True)[1].finish(require_target=True)


def test_an_inactive_log_returns_values_and_writes_nothing() -> None:
    lines, log = run([0.95], target=0.9, active=False)
    assert lines == []
    assert log.finish()["seconds_to_target"] > 0


def test_undefined_figures_are_left_out_and_invalid_ones_refused() -> None:
    assert run([])[1].finish() == {}
    with pytest.raises(ParallelError, match="alone=0"):
        RunLog(alone=0)
