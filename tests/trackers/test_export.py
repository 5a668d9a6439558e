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


TOKEN = "hunter2-" + "a" * 20
# Waits after its first value until the test has seen it in MLflow.
SCRIPT = """
import os, time
seen = f"{os.environ['HERRINGBONE_HOME']}/jobs/live-1/seen"
for step in range(3):
    print(f"loss={1 / 2**step}", flush=True)
    deadline = time.time() + 40
    while step == 0 and not os.path.exists(seen) and time.time() < deadline:
        time.sleep(0.02)
"""


@pytest.fixture
def digits(job, home):
    """A job with events, and the arguments of a call that appends more."""
    job("digits-1", {"algo-1": EVENTS})
    return "append", str(home.job("digits-1").events("algo-1")), b"".join(map(encode, MORE)).decode()


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
    first, again, _, more = call("steps", [export, export, digits, export])
    # In another process: W&B's own process may write its file until its client exits.
    run = call("wandb_runs", str(exports))
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
    assert run["params"] == {"lr": "0.1", "hub_token": '"******"', "a_b": "1"}
    assert run["tags"]["herringbone.state"] == "Completed"


def test_mlflow_takes_many_values_and_ignores_those_that_it_has(job, home, call, server):
    """Without its place, as on another machine, an export sends every value once more."""
    losses = [
        VALUES | {"t": 100.0 + number, "rank": 0, "step": number * 600, "by": 1, "values": [0.5] * 600}
        for number in range(4)
    ]
    job("many-1", {"algo-1": losses}, status="Failed", secondary_status="Failed")
    export = ("export", "many-1", "--to", f"mlflow:{server}/digits")
    exports = home.job("many-1").exports
    first, _, again, run = call("steps", [export, ("remove", str(exports)), export, ("mlflow_run", "@0")])
    assert (first[0]["Values"], again[0]["Values"], again[0]["Run"]) == (2400, 2400, first[0]["Run"])
    assert len(run["metrics"]["loss"]) == 2400
    assert run["status"] == "FAILED"


def test_mlflow_errors_that_pass_are_told_from_others(call):
    refused, denied, unavailable = call("mlflow_errors")
    assert refused[0]
    assert "Connection refused" in refused[1]
    assert not denied[0]
    assert unavailable[0]
    assert "hunter2" not in str([refused, denied, unavailable])


def test_a_job_is_exported_while_it_runs(tmp_path, call, server):
    """The exporters end with the job, and no process of theirs stays."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text(SCRIPT)
    to = [f"mlflow:{server}/live", "tensorboard:runs"]
    result = call("live", str(tmp_path / "src"), to, MLFLOW_TRACKING_TOKEN=TOKEN)
    assert result["status"] == "Completed"
    states = {tracker["To"].partition(":")[0]: tracker for tracker in result["trackers"]}
    assert {name: (tracker["State"], tracker["Values"]) for name, tracker in states.items()} == {
        "mlflow": ("Done", 3),
        "tensorboard": ("Done", 3),
    }
    # Before the job was over, MLflow had its first value.
    assert result["early"][0] >= 1
    assert [value[:2] for value in result["run"]["metrics"]["loss"]] == [[0, 1.0], [1, 0.5], [2, 0.25]]
    assert result["run"]["status"] == "FINISHED"
    assert result["run"]["params"] == {"lr": "0.1"}
    for path in (tmp_path / "home").rglob("*"):
        assert not path.is_file() or TOKEN.encode() not in path.read_bytes(), path
