"""Events become points: names, steps, times, and what hostile events may not do."""

import json

import pytest

from herringbone.trackers.fold import MAX_SERIES, Fold, clean_name


def metrics(name="loss", rank=0, **members):
    return {"kind": "metrics", "t": 10.0, "rank": rank, "name": name, "source": "script", "values": [0.5]} | members


def points(fold, *events):
    return [(point.name, point.step, point.value, point.time) for event in events for point in fold.take(event)]


def test_a_batch_becomes_points_with_steps_and_times():
    event = metrics(since=8.0, step=10, by=5, values=[3.0, 2.0, "nan"])
    found = points(Fold("mlflow"), event)
    assert [point[:2] for point in found] == [("loss", 10), ("loss", 15), ("loss", 20)]
    assert [point[3] for point in found] == [8.0, 9.0, 10.0]
    assert found[2][2] != found[2][2]


def test_ranks_hosts_and_sources_have_names_of_their_own():
    events = [
        metrics(rank=0, host="algo-1"),
        metrics(rank=3, host="algo-2"),
        metrics(rank=None, host=""),
        metrics(rank=None, host="algo-2"),
        metrics(rank=0, host="algo-1", source="tensorboard"),
    ]
    names = [name for name, *_ in points(Fold("mlflow"), *events)]
    # The whole job's and rank 0's would both be `loss`.
    assert names == ["loss", "loss/rank-3", "loss.2", "loss/algo-2", "loss/tensorboard"]


def test_values_without_steps_are_counted_and_repeated_steps_stay():
    fold = Fold("mlflow")
    assert [point[1] for point in points(fold, metrics(values=[1.0, 2.0]), metrics(values=[3.0]))] == [0, 1, 2]
    repeated = [metrics("acc", step=5), metrics("acc", step=4)]
    assert [point[1] for point in points(fold, *repeated)] == [5, 4]


def test_step_times_restarts_and_samples():
    steps = {"kind": "steps", "t": 10.0, "since": 9.0, "rank": 1, "count": 12, "seconds": [0.5, 0.25]}
    restart = {"kind": "restart", "t": 11.0, "attempt": 2, "why": "x"}
    gpu = {"index": 0, "name": "H200", "use": 0.5, "memory": None}
    sample = {"kind": "sample", "t": 12.0, "host": "algo-2", "cpu": 1.5, "ranks": {"0": {}}, "gpus": [gpu]}
    assert points(Fold("mlflow"), steps, restart, sample) == [
        ("step_seconds/rank-1", 11, 0.5, 9.0),
        ("step_seconds/rank-1", 12, 0.25, 10.0),
        ("attempt", 0, 2.0, 11.0),
    ]
    assert points(Fold("mlflow", system=True), sample) == [
        ("system/algo-2/cpu", 0, 1.5, 12.0),
        ("system/algo-2/gpu-0/use", 0, 0.5, 12.0),
    ]


def test_a_later_process_sends_what_is_new_whatever_the_order_of_the_hosts():
    """A read while the job runs mixes the files of hosts in another way than a read of the whole files."""
    first, second = metrics("a", host="algo-1"), metrics("b", host="algo-2", values=[1.0, 2.0])
    fold = Fold("mlflow")
    assert len(points(fold, first, second)) == 3
    rows = json.loads(json.dumps(fold.rows()))
    again = Fold("mlflow", rows)
    new = [metrics("b", host="algo-2", t=20.0), metrics("c", host="algo-1")]
    assert [point[:2] for point in points(again, second, first, *new)] == [("b", 2), ("c", 0)]
    assert [point[:2] for point in points(Fold("mlflow", again.rows()), first, second, *new)] == []


def test_samples_that_were_not_asked_for_are_sent_later():
    sample = {"kind": "sample", "t": 12.0, "host": "algo-1", "cpu": 1.5}
    fold = Fold("mlflow")
    assert points(fold, metrics(), sample) == [("loss", 0, 0.5, 10.0)]
    later = Fold("mlflow", fold.rows(), system=True)
    assert points(later, metrics(), sample) == [("system/cpu", 0, 1.5, 12.0)]


@pytest.mark.parametrize(
    "event",
    [
        {"kind": "metrics", "t": 1.0},
        metrics(values=3),
        metrics(values=["a"]),
        metrics(values=[10**400]),
        metrics(values=[None]),
        metrics(name=3),
        metrics(source=[1]),
        metrics(host={1: 2}),
        metrics(rank="x"),
        metrics(rank=True),
        metrics(step=2**63),
        metrics(step=1.5),
        metrics(step=2**62, by=2**62, values=[1.0, 2.0, 3.0]),
        metrics(t=float("nan")),
        metrics(t=1e300),
        metrics(since="a"),
        {"kind": "steps", "t": 1.0, "rank": 0, "count": None, "seconds": [1.0]},
        {"kind": "restart", "t": 1.0, "attempt": "x"},
        {"kind": "sample", "t": 1.0, "host": "algo-1", "cpu": "x"},
        {"kind": "sample", "t": 1.0, "host": "algo-1", "gpus": [3]},
        {"kind": "another", "t": 1.0},
    ],
)
def test_a_damaged_event_is_left_out(event):
    fold = Fold("mlflow", system=True)
    assert points(fold, event) == []
    assert fold.rows() == []


def test_a_name_for_each_value_fills_no_memory():
    fold = Fold("mlflow")
    sent = points(fold, *(metrics(f"loss-{number}") for number in range(MAX_SERIES + 10)))
    assert len(sent) == MAX_SERIES
    assert fold.left_out == 10


@pytest.mark.parametrize(
    ("tracker", "name", "shown"),
    [
        ("mlflow", "../../etc", "etc"),
        ("mlflow", "a//b/./c", "a/b/c"),
        ("mlflow", "loss\x1b[2J<b>", "loss_x1b_2J_b_"),
        ("mlflow", "/..", "metric"),
        ("tensorboard", "a\nb", "a\\nb"),
        ("wandb", "__x", "x"),
        ("wandb", "step", "step_"),
        ("trackio", "time", "time_"),
    ],
)
def test_names_that_a_tracker_refuses(tracker, name, shown):
    assert clean_name(tracker, name) == shown
    assert len(clean_name(tracker, name * 1000)) < 250


def test_names_that_become_equal_stay_apart():
    names = [name for name, *_ in points(Fold("mlflow"), metrics("a(b)"), metrics("a[b]"))]
    assert len(set(names)) == 2
