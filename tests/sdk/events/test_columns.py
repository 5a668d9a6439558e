"""Metrics: a job's values are columns, and look like a sequence of values."""

from __future__ import annotations

import math
import time
from datetime import datetime, timezone

from herringbone.events.columns import Columns, Metrics, read_files
from herringbone.events.live import newest_progress
from herringbone.events.source import FileEvents, decode_lines
from herringbone.events.view import JobView
from herringbone.records.logs import Metric
from herringbone_contract.events.format import Point, batches, encode


def lines(*points: Point, host: str = "algo-1") -> bytes:
    return b"".join(encode({**event, "host": host}) for event in batches(points))


def columns(*pieces: bytes) -> Metrics:
    found = Columns()
    for piece in pieces:
        found.take_lines(piece)
    return found.metrics


def test_values_are_metrics_by_time_whatever_their_series() -> None:
    metrics = columns(
        lines(
            Point(1.0, "loss", 0.5, 10, 0), Point(3.0, "loss", math.nan, 20, 0), Point(3.0, "lr", 0.1, None, 1, "log")
        ),
        lines(Point(2.0, "loss", -math.inf, 10, 4, "keras"), host="algo-2"),
    )
    assert [(m.name, str(m.value), m.host, m.rank, m.step, m.source) for m in metrics] == [
        ("loss", "0.5", "algo-1", 0, 10, "script"),
        ("loss", "-inf", "algo-2", 4, 10, "keras"),
        ("loss", "nan", "algo-1", 0, 20, "script"),
        ("lr", "0.1", "algo-1", 1, None, "log"),
    ]
    assert metrics.names == ("loss", "lr")
    assert (len(metrics), metrics[-1].name, [m.rank for m in metrics[1:3]]) == (4, "lr", [4, 0])
    assert metrics[0].time == datetime.fromtimestamp(1.0, timezone.utc)
    assert metrics != []
    assert Metrics() == []


def test_values_of_objects_become_the_same_columns() -> None:
    at = datetime.fromtimestamp(1.0, timezone.utc)
    values = [Metric("loss", 0.5, at, "algo-1", 0), Metric("loss", 0.25, at, "algo-1", 0, 7, "script")]
    assert Metrics.of(values) == values
    assert columns(lines(Point(1.0, "loss", 0.5, None, 0, "log"), Point(1.0, "loss", 0.25, 7, 0))) == values


def test_a_value_without_a_step_among_others_has_none() -> None:
    pieces = [lines(Point(1.0 + n, "a", 1.0, step, 0)) for n, step in enumerate((None, 5, None))]
    [series] = columns(*pieces).series
    assert list(series.steps) == [-1, 5, -1]
    [series] = columns(lines(Point(1.0, "a", 1.0, 5, 0), Point(2.0, "a", 2.0, 5, 0))).series
    assert list(series.steps) == [5, 5]


def test_damaged_lines_are_left_out() -> None:
    damaged = [
        b'{"kind":"metrics","t":1,"name":"loss","source":"log","values":["x"]}',
        b'{"kind":"metrics","t":1,"name":"loss","source":"log","values":[1],"since":-5}',
        b'{"kind":"metrics","t":1,"name":"loss","source":"log","values":[1],"step":99999999999999999999}',
        b'{"kind":"metrics","t":1,"name":"loss","source":"log","values":[1,2],"step":1,"by":9223372036854775807}',
        b'{"kind":"state","t":1,"state":"metrics"}',
        b'{"kind":"metrics","t":1,"na',
        b"[" * 100_000 + b'"metrics"',
        b'\xff\x00"metrics"',
        b'{"kind":"metrics","t":1,"name":"l\xffss","source":"log","values":[1]}',
    ]
    good = lines(Point(1.0, "loss", 0.5))
    for bad in damaged:
        [metric] = columns(bad + b"\n" + good)
        assert metric.value == 0.5
        assert [event["t"] for event in decode_lines(bad + b"\n" + good) if event["kind"] == "metrics"][-1] == 1.0


def test_a_million_values_are_read_in_a_fifth_of_a_second(tmp_path) -> None:
    # 30 values a batch are those of a second of a fast script.
    batch = lines(*(Point(1.0 + n / 30, "loss", 1 / (n + 3), n, 0) for n in range(30)))
    (tmp_path / "algo-1.events").write_bytes(batch * 33_334)
    seconds = []
    for _ in range(3):
        begin = time.process_time()
        metrics, exists = read_files([tmp_path / "algo-1.events", tmp_path / "job.events"])
        assert exists
        assert len(metrics) == 1_000_020
        seconds.append(time.process_time() - begin)
    # Twice what it takes on an idle machine.
    assert min(seconds) < 0.4


def test_progress_is_read_from_the_ends_of_the_files(tmp_path) -> None:
    def progress(**members) -> bytes:
        return encode({"kind": "progress", "total": 20, "unit": "step", "eta": None, **members})

    files = [tmp_path / name for name in ("job.events", "algo-1.events", "algo-2.events")]
    files[1].write_bytes(progress(t=3.0, done=5) + b'{"kind":"progress","t":9')
    files[2].write_bytes(progress(t=2.0, done=4) + encode({"kind": "bill", "t": 4.0, "text": "x" * 5000}))
    found = newest_progress(FileEvents(files), JobView)
    assert found is not None
    assert (found.done, found.total, found.time) == (5.0, 20.0, 3.0)
    # Old progress is before the end of a long file.
    files[2].write_bytes(files[2].read_bytes() + encode({"kind": "bill", "t": 5.0, "text": "x" * 5000}) * 60)
    files[1].unlink()
    found = newest_progress(FileEvents(files), lambda: JobView().take_all(decode_lines(files[2].read_bytes())))
    assert found is not None
    assert found.done == 4.0
    files[2].unlink()
    assert newest_progress(FileEvents(files), JobView) is None


def test_a_view_and_the_metrics_agree() -> None:
    content = lines(Point(1.0, "loss", 0.5, 10, 0), Point(2.0, "loss", 0.25, 20, 0), Point(2.0, "lr", 0.1, 20, 0))
    view = JobView()
    found = Columns()
    for event in decode_lines(content):
        view.take(event)
        found.take(event)
    assert Metrics(view.series.values()) == found.metrics == columns(content)
