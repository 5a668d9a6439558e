"""`herringbone metrics`, over rows and logs that are made by hand."""

import json

import pytest

from herringbone.records.index import JobIndex, JobRecord
from herringbone_contract.events.format import Point, batches, encode


@pytest.fixture
def jobs(home):
    """Three jobs: with losses, with other losses, and without metrics."""
    home.make()
    logs = {"run-1": ["loss=2", "loss=0.5"], "run-2": ["loss=3", "loss=0.25", "loss=1"], "quiet-3": ["hello"]}
    for created, (name, lines) in enumerate(logs.items()):
        plan = {
            "hosts": [{"name": "algo-1"}],
            "hyperparameters": {"lr": str(created), "epochs": "3", "sagemaker_job_name": json.dumps(name)},
            "options": {"metric_definitions": [{"Name": "loss", "Regex": "loss=([0-9.]+)"}]},
        }
        row = JobRecord(
            name=name,
            backend="local_process",
            plan=json.dumps(plan),
            created=float(created),
            started=1795262400.0,  # 2026-11-21 12:00:00 UTC
            status="Completed",
        )
        JobIndex(home.index).add(row)
        home.job(name).logs.mkdir(parents=True)
        text = [f"2026-11-21T12:00:0{second}.000000Z [algo-1:0] {line}\n" for second, line in enumerate(lines, start=1)]
        home.job(name).log("algo-1").write_text("".join(text))


def test_a_table_of_one_job_and_of_several(herringbone, jobs):
    code, out, err = herringbone("metrics", "run-2")
    assert (code, err) == (0, "")
    assert [line.split("  ")[0] for line in out.splitlines()] == ["METRIC", "loss"]
    assert "1 (#3, 3.0 s)" in out
    assert "0.25 (#2, 2.0 s)" in out
    code, out, err = herringbone("metrics", "run-1", "run-2", "--best", "min", "loss")
    assert (code, err) == (0, "")
    settings, lr, blank, titles, loss = out.splitlines()
    assert settings.split() == ["SETTING", "run-2", "run-1"]
    assert lr.split() == ["lr", "1", "0"]
    assert (blank, titles.split()) == ("", ["METRIC", "run-2", "run-1"])
    assert loss.split("  ") == ["loss (min)", "0.25 (#2, 2.0 s)", "0.5 (#2, 2.0 s)"]


def test_csv_and_json(herringbone, jobs):
    code, out, _ = herringbone("metrics", "run-1", "--csv")
    assert code == 0
    assert out.splitlines()[1] == "run-1,loss,1,2.0,2026-11-21T12:00:01+00:00,algo-1,0,,log"
    (run,) = json.loads(herringbone("metrics", "run-1", "--json")[1])
    assert (run["TrainingJobName"], run["HyperParameters"]["lr"]) == ("run-1", "0")
    (metric,) = run["Metrics"]
    assert (metric["MetricName"], metric["Count"]) == ("loss", 2)
    assert metric["Min"] == {"Value": 0.5, "Number": 2, "Timestamp": "2026-11-21T12:00:02+00:00"}


def test_a_job_without_metrics_is_named(herringbone, jobs, home):
    code, out, err = herringbone("metrics", "--last")
    assert (code, out.split()) == (0, ["METRIC", "LAST", "MIN", "MAX", "VALUES"])
    found = "its metric_definitions found no number; the end of its log says what they matched"
    assert err == f"job quiet-3 has no metrics: {found}\n"
    JobIndex(home.index).add(
        JobRecord(name="bare-4", backend="local_process", plan="{}", created=9.0, status="Completed")
    )
    err = herringbone("metrics", "bare-4")[2]
    assert err == "job bare-4 has no metrics: call herringbone.log_metrics in its script, or give metric_definitions\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Missing argument 'NAME...'"),
        (["run-1", "--best", "min", "lost"], "no run here has a metric of that name; there is: loss"),
        (["run-1", "--best", "least", "loss"], "is not one of"),
        (["run-1", "--csv", "--json"], "--csv shows every value"),
        (["run"], "2 jobs have names that begin with 'run'"),
    ],
)
def test_mistakes(herringbone, jobs, words, message):
    code, _, err = herringbone("metrics", *words)
    assert code == 2
    assert message in err


def test_follow_shows_new_values_and_then_the_table(herringbone, jobs, home):
    [batch] = batches([Point(1795262401.0, "loss", 2.0, 10, 0), Point(1795262402.0, "loss", 0.5, 20, 0)])
    lines = [encode({**batch, "host": "algo-1"}), encode({"kind": "bill", "t": 1795262403.0, "text": "$2"})]
    home.job("run-1").events("algo-1").write_bytes(b"".join(lines))
    code, out, err = herringbone("metrics", "run-1", "--follow")
    assert (code, err) == (0, "")
    value, titles, loss = out.splitlines()
    assert value == "loss 0.5 (step 20, 2.0 s, algo-1:0)"
    assert titles.startswith("METRIC")
    assert loss.split()[:5] == ["loss", "0.5", "(#2,", "2.0", "s)"]
    code, _, err = herringbone("metrics", "run-1", "run-2", "--follow")
    assert code == 2
    assert "--follow shows one job" in err
