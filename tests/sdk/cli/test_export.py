"""`herringbone export`, up to the tracker: the packages of trackers are in another Python (tests/trackers)."""

import json
import sys

import pytest

from herringbone.cli.jobs.export import export_line
from herringbone.records.index import COMPLETED, JobIndex, JobRecord
from herringbone.trackers.exporter import Export


@pytest.fixture
def job(home):
    home.make()
    plan = json.dumps({"job_name": "a", "hosts": [], "options": {}})
    record = {"status": COMPLETED, "secondary_status": COMPLETED, "created": 1.0, "plan": plan}
    JobIndex(home.index).add(JobRecord(name="a", backend="local_process", **record))
    return home.job("a")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ([], 2, "Missing argument 'NAME...'"),
        (["none"], 2, "no job 'none'"),
        (["a"], 2, "job a: it has no option track, so name a destination: --to tensorboard:runs"),
        (["a", "--to", "mlflow:ml:5000/x"], 2, "export: mlflow:'ml:5000/x' has no scheme"),
        (["a", "--to", "trackio:x"], 2, "trackio: its package is not installed in this Python; run pip install '.["),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(job, herringbone, monkeypatch, words, code, message):
    monkeypatch.setitem(sys.modules, "trackio", None)
    result, out, err = herringbone("export", *words)
    assert (result, out) == (code, "")
    assert message in err
    assert not job.exports.exists()


def test_of_several_jobs_each_is_tried(job, herringbone):
    code, out, err = herringbone("export", "none-1", "none-2", "--to", "trackio:x", "--json")
    assert code == 1
    assert [row["TrainingJobName"] for row in json.loads(out)] == ["none-1", "none-2"]
    assert err.count("herringbone: job none-") == 2


def test_the_line_of_an_export():
    export = Export("wandb:a", 0, 0, None, over=False, left_out=1000)
    assert export_line("a", export) == (
        "job a: no new values, 0 in all, at wandb:a; the job is not over; "
        "1,000 values left out: the job has more metrics than a tracker can show"
    )
