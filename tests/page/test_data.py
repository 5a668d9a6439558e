"""The page's data: series are thinned and bounded, texts of jobs stay texts, and damaged events harm nothing."""

from __future__ import annotations

import json
import math
import random
from array import array

import msgspec
import pytest
from tests.page.make_jobs import FAILURE, pipeline

from herringbone.events.kinds import decode
from herringbone.events.view import JobView
from herringbone.records.index import JobRecord
from herringbone.show.thin import thinned
from herringbone.views.page.data import Fineness, job_data
from herringbone.views.page.history import History, Track, timeline_data

ROW = JobRecord(name="a", backend="local_process", plan="{}", created=100.0, started=110.0)


def data(*events, record=ROW, now=200.0, fineness=None):
    view, history = JobView(), History()
    for event in events:
        view.take(event)
        history.take(event)
    return msgspec.json.decode(msgspec.json.encode(job_data(record, view, history, now=now, fineness=fineness)))


def test_thinning_keeps_peaks_ends_and_the_first_odd_value():
    noise = random.Random(1)
    values = array("d", (noise.random() for _ in range(100_000)))
    values[33_333], values[77_777], values[50_000] = 9.0, -9.0, math.nan
    kept = thinned(values, 500)
    assert len(kept) <= 1003
    assert {0, 33_333, 50_000, 77_777, 99_999} <= set(kept)
    assert kept == sorted(set(kept))


@pytest.mark.parametrize("values", [[], [1.0], [math.nan] * 50, [math.inf, -math.inf, 1.0] * 20])
def test_thinning_takes_any_values(values):
    assert set(thinned(values, 3)) <= set(range(len(values)))
    assert bool(thinned(values, 3)) == bool(values)


def test_a_track_is_bounded_and_keeps_means():
    track = Track()
    for second in range(50_000):
        track.add(float(second), 2.0 if second % 2 else 0.0)
    assert len(track.times) == len(track.values) <= 1_200
    assert track.times == sorted(track.times)
    assert track.times[-1] == 49_999.0
    assert sum(track.values) / len(track.values) == pytest.approx(1.0, abs=0.01)


def test_metrics_have_steps_times_and_the_first_value_that_is_no_number():
    [metric] = data(
        {
            "kind": "metrics",
            "t": 113.0,
            "since": 111.0,
            "name": "loss",
            "step": 10,
            "by": 5,
            "values": [0.5, "nan", 0.25],
        }
    )["metrics"]
    [line] = metric["lines"]
    assert (line["x"], line["steps"], line["y"]) == ([1.0, 2.0, 3.0], [10, 15, 20], [0.5, None, 0.25])
    assert line["odd"] == {"text": "nan", "at": 1, "step": 15}


def test_many_ranks_share_the_points():
    events = [
        {
            "kind": "metrics",
            "t": 200.0,
            "since": 110.0,
            "name": "loss",
            "rank": rank,
            "step": 0,
            "by": 1,
            "values": [float(v) for v in range(1000)],
        }
        for rank in range(600)
    ]
    shown = data(*events, fineness=Fineness(500, 20_000))
    [metric] = shown["metrics"]
    assert metric["count"] == 600
    assert len(metric["lines"]) <= 400
    assert sum(len(line["x"]) for line in metric["lines"]) <= 25_000


def test_the_loss_comes_first_and_is_named():
    shown = data(
        {"kind": "metrics", "t": 111.0, "name": "accuracy", "values": [0.5]},
        {"kind": "metrics", "t": 111.0, "name": "eval_loss", "values": [0.7]},
        {"kind": "metrics", "t": 111.0, "name": "train_loss", "values": [0.6]},
    )
    assert [metric["name"] for metric in shown["metrics"]] == ["train_loss", "eval_loss", "accuracy"]
    assert shown["loss"] == {"name": "train_loss", "value": 0.6, "text": "0.6"}


def test_progress_counts_down_until_the_end():
    progress = {"kind": "progress", "t": 150.0, "done": 5, "total": 20, "unit": "step", "eta": 80.0}
    assert data(progress, now=160.0)["progress"] == {
        "done": 5.0,
        "total": 20.0,
        "text": "5 of 20 steps",
        "left": "1 min 10 s",
        "eta": 70.0,
        "late": None,
        "fraction": 0.25,
    }
    over = JobRecord(
        name="a", backend="local", plan="{}", created=1.0, status="Completed", secondary_status="Completed"
    )
    assert data(progress, record=over)["progress"]["eta"] is None


def test_a_failure_has_its_remedy():
    record = JobRecord(
        name="a",
        backend="local",
        plan="{}",
        created=1.0,
        status="Failed",
        secondary_status="Failed",
        failure=FAILURE.to_json(),
    )
    failure = data(record=record)["failure"]
    assert failure["head"].startswith("rank 1 on algo-1: ModuleNotFoundError")
    assert "requirements.txt" in failure["remedy"]
    assert data(record=JobRecord(**{**_columns(record), "failure": "{"}))["failure"]["text"] == ""


def _columns(record):
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


def test_a_hang_is_an_alert_until_the_job_goes_on():
    hang = {"kind": "hang", "t": 150.0, "since": 60.0, "why": "no step", "ranks": [1]}
    assert data(hang)["alerts"] == ["hang"]
    assert data(hang)["happenings"][-1]["text"] == "nothing has moved for 1 min; the odd one is rank 1: no step"
    assert data(hang, {"kind": "metrics", "t": 160.0, "name": "loss", "values": [1.0]})["alerts"] == []


def test_defined_metrics_without_a_value_are_named_at_the_end():
    definitions = [{"Name": name, "Regex": "(.)"} for name in ("loss", "top5")]
    plan = json.dumps({"options": {"metric_definitions": definitions}})
    over = JobRecord(**{**_columns(ROW), "plan": plan, "status": "Completed", "ended": 190.0})
    value = {"kind": "metrics", "t": 160.0, "name": "loss", "values": [1.0]}
    assert data(value, record=over)["happenings"][-1] == {
        "t": 190.0,
        "kind": "metrics",
        "text": "metric_definitions found no number for top5",
    }
    running = JobRecord(**{**_columns(ROW), "plan": plan})
    assert "metrics" not in [happening["kind"] for happening in data(value, record=running)["happenings"]]


def test_stacks_are_shown_in_groups():
    shown = data(
        {
            "kind": "stacks",
            "t": 2.0,
            "why": "hang",
            "groups": [{"ranks": [1], "state": "S", "why": "no collective", "frames": ["t.py:4 in g"]}],
        },
    )["stacks"]
    assert [group for dump in shown for group in dump["groups"]] == [
        {"ranks": [1], "state": "S no collective", "text": "t.py:4 in g"},
    ]


def test_the_bubble_is_computed_and_compared():
    timeline = timeline_data(
        decode({"kind": "timeline", "t": 1.0, "step": 3, "spans": pipeline(0, 2, 2), "predicted": {"bubble": 0.25}})
    )
    # Two partitions, two microbatches: each partition computes 6 of 9 parts of the step.
    assert timeline["measured"]["bubble"] == pytest.approx(1 / 3)
    assert timeline["predicted"]["bubble"] == 0.25


HOSTILE = [
    {"kind": "sample", "t": 1.0},
    {"kind": "sample", "t": 1.0, "host": "algo-1", "cpu": "x", "gpus": [1, {}, {"index": "x"}], "ranks": [1]},
    {"kind": "sample", "t": 1.0, "host": "algo-1", "cpu": math.nan, "memory": 10**400, "gpus": 3},
    {"kind": "steps", "t": 1.0, "rank": 0, "count": 1, "seconds": [0, -1, "x", None, math.inf]},
    {
        "kind": "timeline",
        "t": 1.0,
        "spans": [[1], ["f", 0, 0, math.nan, 1], ["f", 0, 10**9, 0, 1], "x"],
        "predicted": 3,
    },
    {"kind": "timeline", "t": 1.0, "spans": "x"},
    {"kind": "stacks", "t": 1.0, "ranks": 3},
    {"kind": "stacks", "t": 1.0, "groups": [3, {"ranks": "x", "frames": {"a": 1}}]},
    {"kind": "hang", "t": 1.0, "since": "x", "why": {"a": "b"}},
    {"kind": "straggler", "t": 1.0, "rank": "x", "seconds": math.nan, "median": 0},
    {"kind": "checkpoint", "t": 1.0, "path": "\x1b[2J", "bytes": -1},
    {"kind": "restart", "t": 1.0},
    {"kind": "progress", "t": 1.0, "done": math.nan, "total": 0, "eta": math.inf},
    {"kind": "bill", "t": 1.0, "text": "\x1b[31m$2"},
    {"kind": "metrics", "t": 1.0, "name": "\x1b]0;x\x07<b>", "values": [1e308, -1e308, "inf"]},
]


@pytest.mark.parametrize("event", HOSTILE, ids=lambda event: event["kind"])
def test_a_hostile_event_leaves_a_page_without_control_characters(event):
    text = json.dumps(data(event))
    assert "\\u001b" not in text
    assert "NaN" not in text
