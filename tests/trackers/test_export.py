"""Exports to the four trackers, each read back with the tracker's own reader."""

import pytest

from herringbone_contract.events.format import encode

pytestmark = pytest.mark.trackers

VALUES = {"kind": "metrics", "source": "script", "name": "loss"}
EVENTS = [
    VALUES | {"t": 101.0, "rank": 0, "since": 100.0, "step": 10, "by": 10, "values": [0.5, 0.25]},
    VALUES | {"t": 102.0, "rank": 1, "step": 10, "values": ["nan"]},
    {"kind": "sample", "t": 102.5, "host": "algo-1", "cpu": 1.5},
]
# After a restart, from an earlier step.
MORE = [
    VALUES | {"t": 110.0, "rank": 0, "step": 20, "values": [0.125]},
    {"kind": "restart", "t": 109.0, "attempt": 2, "why": "NCCL error"},
]


@pytest.fixture
def digits(job, home):
    """A job with events, and the arguments of a call that appends more."""
    job("digits-1", {"algo-1": EVENTS})
    return "append", str(home.job("digits-1").events("algo-1")), b"".join(map(encode, MORE)).decode()


def test_mlflow_gets_each_value_once(digits, call, server):
    to = f"mlflow:{server}/my%20digits"
    export = ("export", "digits-1", "--to", to)
    first, again, _, more, _, run = call(
        "steps", [export, export, digits, export, (*export, "--system"), ("mlflow_run", "@0")]
    )
    assert [each[0]["Values"] for each in (first, again, more)] == [3, 0, 2]
    assert (more[0]["Total"], more[0]["Over"]) == (5, True)
    assert (run["name"], run["status"], run["experiment"]) == ("digits-1", "FINISHED", "my digits")
    assert run["metrics"]["loss"] == [[10, 0.5, 100_000], [20, 0.25, 101_000], [20, 0.125, 110_000]]
    assert run["metrics"]["attempt"] == [[0, 2.0, 109_000]]
    assert run["metrics"]["system/cpu"] == [[0, 1.5, 102_500]]
    assert [step for step, _, _ in run["metrics"]["loss/rank-1"]] == [10]
    assert run["params"] == {"lr": "0.1", "hub_token": '"******"'}
    assert run["tags"]["herringbone.state"] == "Completed"


def test_tensorboard_gets_each_value_once(digits, call, tmp_path):
    export = ("export", "digits-1", "--to", "tensorboard:runs")
    first, again, _, more, run = call("steps", [export, export, digits, export, ("tensorboard_run", "@0")])
    assert [each[0]["Values"] for each in (first, again, more)] == [3, 0, 2]
    assert first[0]["Run"] == str(tmp_path / "runs" / "digits-1")
    assert run["metrics"]["loss"] == [[10, 0.5, 100.0], [20, 0.25, 101.0], [20, 0.125, 110.0]]
    assert "| lr | 0.1 |" in run["texts"]["hyperparameters"]
    assert "| herringbone.state | Completed |" in run["texts"]["job"]


def test_wandb_gets_each_value_once(digits, call, home):
    export = ("export", "digits-1", "--to", "wandb:digits")
    exports = home.job("digits-1").exports
    first, again, _, more, run = call("steps", [export, export, digits, export, ("wandb_runs", str(exports))])
    assert [each[0]["Values"] for each in (first, again, more)] == [3, 0, 2]
    losses = [(row["step"], row["loss"], row["_timestamp"]) for row in run["rows"] if "loss" in row]
    assert losses == [(10, 0.5, 100.0), (20, 0.25, 101.0), (20, 0.125, 110.0)]
    assert len(set(run["ids"])) == 1
    assert run["config"]["lr"] == 0.1
    assert run["exits"] == [0, 0]


def test_trackio_gets_each_value_once(digits, call):
    export = ("export", "digits-1", "--to", "trackio:digits")
    first, again, _, more, run = call("steps", [export, export, digits, export, ("trackio_run", "digits", "digits-1")])
    assert [each[0]["Values"] for each in (first, again, more)] == [3, 0, 2]
    losses = [(row["step"], row["loss"], row["timestamp"]) for row in run["rows"] if "loss" in row]
    assert losses == [
        (10, 0.5, "1970-01-01T00:01:40+00:00"),
        (20, 0.25, "1970-01-01T00:01:41+00:00"),
        (20, 0.125, "1970-01-01T00:01:50+00:00"),
    ]
    assert run["config"]["lr"] == 0.1
