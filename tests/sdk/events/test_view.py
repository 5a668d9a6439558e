"""A job's events become one picture of it, whatever else is among them."""

from __future__ import annotations

from herringbone.events.series import MAX_SERIES
from herringbone.events.source import FileEvents
from herringbone.events.view import JobView
from herringbone_contract.events.format import Point, batches, encode


def test_a_job_is_shown_from_its_events() -> None:
    view = JobView()
    view.take({"kind": "state", "t": 1.0, "state": "Training"})
    view.take_all(
        {**event, "host": "algo-1"} for event in batches([Point(2.0, "loss", 0.5, 1), Point(3.0, "loss", 0.25, 2)])
    )
    view.take({"kind": "steps", "t": 3.0, "host": "algo-1", "rank": 0, "count": 2, "since": 1.0, "seconds": [0.5, 0.5]})
    view.take({"kind": "steps", "t": 3.0, "host": "algo-1", "rank": 1, "count": 2, "since": 1.0, "seconds": [1.0, 1.0]})
    view.take({"kind": "sample", "t": 3.0, "host": "algo-1", "cpu": 1.5, "memory": 10})
    assert view.state == "Training"
    assert view.last("loss") == 0.25
    [series] = view.series.values()
    assert (list(series.steps), list(series.times), list(series.values)) == ([1, 2], [2.0, 3.0], [0.5, 0.25])
    assert view.steps_per_second == 1.0
    assert view.samples["algo-1"].cpu == 1.5


def test_unknown_and_damaged_events_change_nothing() -> None:
    view = JobView()
    for event in (
        {"kind": "new", "t": 1.0},
        {"kind": "metrics", "t": 1.0, "name": "loss"},
        {"kind": "metrics", "t": 1.0, "name": "loss", "values": ["x"]},
        {"kind": "progress", "t": 1.0},
        {"kind": "steps", "t": 1.0, "rank": [], "count": 1, "seconds": []},
        {"kind": "all", "t": 1.0},
        {"kind": "progress", "t": 1.0, "done": "much"},
        {"kind": "metrics", "t": 1.0, "name": "loss", "values": []},
        {"kind": "metrics", "t": 1.0, "name": "loss", "values": [1], "since": -1},
        {"kind": "metrics", "t": 1.0, "name": 3, "values": [1]},
        {"kind": "sample", "t": 1.0, "host": "a", "cpu": "x"},
        {"kind": "sample", "t": 1.0, "host": "a", "cpu": "inf"},
        {"kind": "sample", "t": 1.0, "host": "a", "gpus": [None, {"use": "1"}, 3]},
        {"kind": "straggler", "t": 1.0, "rank": "x"},
        {"kind": "metrics", "t": 1.0, "name": "loss", "values": [1], "step": 1 << 70},
        {"kind": "metrics", "t": 1.0, "name": "loss", "values": [1, 2], "step": 1, "by": 1 << 70},
        {"kind": "metrics", "t": 1.0, "name": "loss", "values": [1], "rank": "x"},
    ):
        view.take(event)
    assert view.last_time is None
    assert view.progress is None
    assert view.series == {}


def test_files_are_read_from_where_the_last_read_ended(tmp_path) -> None:
    host, job = tmp_path / "algo-1.events", tmp_path / "job.events"
    source = FileEvents([host, job])
    assert source.read() == []
    bill = {"kind": "bill", "t": 2.0, "text": "$2"}
    line = encode({"kind": "state", "t": 3.0, "state": "Completed"})
    host.write_bytes(line[:9])
    job.write_bytes(encode(bill))
    assert source.read() == [bill]
    with host.open("ab") as file:
        file.write(line[9:] + b"a line that a full disk has cut\n" + encode({**bill, "t": 1.0}))
    assert [event["t"] for event in source.read()] == [1.0, 3.0]
    assert source.read() == []
    source.close()


def test_files_are_read_in_parts_and_by_time(tmp_path) -> None:
    for name, times in {"algo-1": [1, 3, 5, 4, 7, 9], "job": [2, 8]}.items():
        # A part of a file is 1 MiB. The long lines are no events.
        lines = [encode({"kind": "bill", "t": float(time), "text": ""}) + b"x" * 1_100_000 + b"\n" for time in times]
        (tmp_path / f"{name}.events").write_bytes(b"".join(lines))
    source = FileEvents([tmp_path / "job.events", tmp_path / "algo-1.events"])
    parts = list(source.rest(None))
    source.close()
    assert len(parts) > 2
    assert [event["t"] for part in parts for event in part] == [1, 2, 3, 5, 4, 7, 8, 9]


def test_names_without_end_do_not_fill_the_memory() -> None:
    view = JobView()
    view.take_all({"kind": "metrics", "t": 1.0, "name": str(n), "values": [1]} for n in range(MAX_SERIES + 10))
    assert len(view.series) == MAX_SERIES
