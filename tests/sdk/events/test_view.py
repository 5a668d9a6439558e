"""A job's events become one picture of it, whatever else is among them."""

from __future__ import annotations

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
    assert view.samples["algo-1"][-1]["cpu"] == 1.5


def test_unknown_and_damaged_events_change_nothing() -> None:
    view = JobView()
    for event in (
        {"kind": "new", "t": 1.0},
        {"kind": "metrics", "t": 1.0, "name": "loss"},
        {"kind": "metrics", "t": 1.0, "name": "loss", "values": ["x"]},
        {"kind": "progress", "t": 1.0},
        {"kind": "steps", "t": 1.0, "rank": [], "count": 1, "seconds": []},
        {"kind": "all", "t": 1.0},
    ):
        view.take(event)
    assert view.last_time is None
    assert view.progress is None


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
