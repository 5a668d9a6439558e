"""MLPerf's log lines: reading returns what was written, and other lines are not taken for events."""

from __future__ import annotations

import pytest

from herringbone_contract.events.mllog import POINT, START, STOP, Event, Reader, parse, render

LINE = (
    ':::MLLOG {"namespace": "", "time_ms": 1556733699974, "event_type": "POINT_IN_TIME", "key": "eval_accuracy",'
    ' "value": 0.64, "metadata": {"file": "train.py", "lineno": 12, "epoch_num": 4}}'
)


def test_a_line_as_mlperf_writes_it() -> None:
    metadata = {"file": "train.py", "lineno": 12, "epoch_num": 4}
    assert parse(LINE) == Event("eval_accuracy", 0.64, 1556733699974, POINT, metadata)
    # Some launchers print the rank first.
    assert parse("0: " + LINE) == parse(LINE)
    assert render(parse(LINE)) == LINE


@pytest.mark.parametrize("value", [None, 3, 0.5, "sgd", {"throughput": 12.5}, [1, 2], True])
def test_reading_undoes_writing(value: object) -> None:
    event = Event("key", value, 17, STOP, {"epoch_num": 3})
    assert parse(render(event)) == event


@pytest.mark.parametrize(
    "line",
    [
        "",
        "loss=0.5",
        ":::MLLOG",
        ":::MLLOG {",
        ":::MLLOG []",
        ":::MLLOG 3",
        ':::MLLOG {"key": "seed", "value": 3}',
        ':::MLLOG {"key": 3, "value": 3, "time_ms": 1, "event_type": "POINT_IN_TIME"}',
        ':::MLLOG {"key": "seed", "value": 3, "time_ms": "noon", "event_type": "POINT_IN_TIME"}',
        ':::MLLOG {"key": "seed", "value": 3, "time_ms": 1, "event_type": "POINT_IN_TIME", "metadata": 3}',
        LINE[:-5],
    ],
)
def test_other_lines_and_damaged_ones_are_no_events(line: str) -> None:
    assert parse(line) is None


def test_the_end_of_an_interval_gives_its_duration() -> None:
    reader = Reader()
    numbers = [
        reader.numbers(event)
        for event in (
            Event("run_start", None, 0, START),
            Event("epoch_start", None, 500, START),
            Event("optimizer", "lars", 600),
            Event("epoch_stop", None, 2500, STOP),
            Event("epoch_stop", None, 2600, STOP),
            Event("run_stop", None, 3000, STOP),
            Event("tracked_stats", {"throughput": 9, "converged": True, "name": "x"}, 3000),
        )
    ]
    assert numbers == [[], [], [], [("epoch_seconds", 2.0)], [], [("run_seconds", 3.0)], [("throughput", 9.0)]]
