from __future__ import annotations

from pathlib import Path

import pytest

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.pipeline.simulate import Segment, simulate
from herringbone_parallel.core.pipeline.trace import (
    Event,
    chrome_trace,
    idle_fractions,
    read_trace,
    side_by_side,
    span_s,
    write_trace,
)

EVENTS = [Event(0, "forward", 0, 1.0, 2.0), Event(1, "forward", 0, 2.0, 3.5), Event(0, "backward", 0, 4.0, 5.0, step=2)]


def test_a_trace_has_a_process_per_rank_and_microseconds() -> None:
    assert chrome_trace(EVENTS, name="real") == {
        "traceEvents": [
            {"name": "process_name", "ph": "M", "pid": 0, "tid": 0, "args": {"name": "real rank 0"}},
            {"name": "process_name", "ph": "M", "pid": 1, "tid": 0, "args": {"name": "real rank 1"}},
            {
                "name": "F0", "cat": "forward", "ph": "X", "pid": 0, "tid": 0, "ts": 1e6, "dur": 1e6,
                "args": {"microbatch": 0, "step": 0},
            },
            {
                "name": "F0", "cat": "forward", "ph": "X", "pid": 1, "tid": 0, "ts": 2e6, "dur": 1.5e6,
                "args": {"microbatch": 0, "step": 0},
            },
            {
                "name": "B0", "cat": "backward", "ph": "X", "pid": 0, "tid": 0, "ts": 4e6, "dur": 1e6,
                "args": {"microbatch": 0, "step": 2},
            },
        ],
        "displayTimeUnit": "ms",
    }  # fmt: skip


def test_a_trace_reads_back_as_it_was(tmp_path: Path) -> None:
    write_trace(tmp_path / "trace.json", EVENTS)
    assert read_trace(tmp_path / "trace.json") == EVENTS
    write_trace(tmp_path / "empty.json", [])
    assert read_trace(tmp_path / "empty.json") == []


@pytest.mark.parametrize("content", ["", '{"traceEvents": [{"ph": "X"', "[]", "{}", '{"traceEvents": [{"ph": "X"}]}'])
def test_an_invalid_trace_is_refused_with_its_path(tmp_path: Path, content: str) -> None:
    path = tmp_path / "half.json"
    path.write_text(content)
    with pytest.raises(ParallelError, match=r"half\.json cannot be read as a timeline .*SMP_TIMELINE"):
        read_trace(path)


def test_a_missing_trace_is_refused_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(ParallelError, match=r"nowhere\.json cannot be read"):
        read_trace(tmp_path / "nowhere.json")


def test_span_and_idle_start_at_the_first_event() -> None:
    assert span_s(EVENTS) == 4.0
    assert idle_fractions(EVENTS) == {0: 0.5, 1: 0.625}
    assert span_s([]) == 0.0
    assert idle_fractions([]) == {}


def test_predicted_and_real_are_compared_in_one_table() -> None:
    simulation = simulate([[Segment(0, 1, 1), Segment(1, 1, 1)]] * 2, pipeline="simple", active=2)
    predicted = [event for rank in simulation.events for event in rank]
    real = [Event(0, "forward", 0, 100.0, 105.0), Event(0, "backward", 0, 106.25, 106.25)]
    assert side_by_side(predicted, real) == (
        "               predicted        real  difference\n"
        "step            6.0000 s    6.2500 s       -4.0%\n"
        "idle, rank 0       33.3%       20.0%    +13.3 pt\n"
        "idle, rank 1       33.3%           -           -"
    )
