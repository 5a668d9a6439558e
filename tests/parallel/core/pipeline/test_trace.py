from __future__ import annotations

from pathlib import Path

from herringbone_parallel.core.pipeline.trace import Event, chrome_trace, idle_fractions, span_s, write_trace
from tests.parallel.core.pipeline.traces import read_trace

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


def test_span_and_idle_start_at_the_first_event() -> None:
    assert span_s(EVENTS) == 4.0
    assert idle_fractions(EVENTS) == {0: 0.5, 1: 0.625}
    assert span_s([]) == 0.0
    assert idle_fractions([]) == {}
