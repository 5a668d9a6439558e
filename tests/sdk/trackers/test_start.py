"""The exporters that `fit` starts: their processes, what they get, and what `describe` says about them."""

import json
import os
import sys
import time

import msgspec
import pytest
from tests.trackers.installed import install
from tests.waiting import wait_until

from herringbone import Estimator
from herringbone.api.job import TrainingJob
from herringbone.plan.options.typed import Options
from herringbone.trackers.export import start_exporters

SEEN = "import json, os, sys; print(json.dumps([sys.argv, os.getcwd(), os.getsid(0) == os.getpid(), sys.stdin.read()]))"


@pytest.fixture
def plan(script, monkeypatch, tmp_path):
    script("print('x')")
    install(monkeypatch, tmp_path, "tensorboard", "wandb")
    estimator = Estimator("train.py", instance_type="local_process", track=["tensorboard:runs", "wandb:a"])
    return estimator.plan(job_name="a")


def wait_for_logs(exports):
    wait_until(lambda: len([log for log in exports.glob("*.log") if log.stat().st_size]) >= 2, 20)
    return sorted(exports.glob("*.log"))


def test_an_exporter_is_a_detached_process_for_each_destination(plan, backend, home):
    home.make()
    start_exporters(plan, backend, command=[sys.executable, "-c", SEEN])
    exports = home.job("a").exports
    logs = wait_for_logs(exports)
    assert [log.name.partition("-")[0] for log in logs] == ["tensorboard", "wandb"]
    argv, folder, leads_session, standard_input = json.loads(logs[0].read_text())
    assert argv == ["-c", "a", f"tensorboard:{os.getcwd()}/runs"]
    assert (folder, leads_session, standard_input) == (str(exports), True, "")
    assert {path.stat().st_mode & 0o777 for path in (exports, exports.parent)} == {0o700}


def test_a_job_runs_without_an_exporter_that_cannot_be_started(plan, backend, home):
    home.make()
    start_exporters(plan, backend, command=["/no/such/program"])
    state = json.loads(next(home.job("a").exports.glob("wandb-*.json")).read_text())
    assert state["error"].startswith("the exporter could not be started: [Errno 2]")


def test_a_full_disk_costs_the_exports_and_not_the_job(plan, backend, home, capsys):
    home.make()
    (home.path / "jobs" / "a").write_text("")
    start_exporters(plan, backend)
    assert "job a: its metrics are not exported: [Errno" in capsys.readouterr().err


def test_describe_shows_an_exporter_that_died_and_the_way_on(plan, backend, home):
    job = TrainingJob.submit(msgspec.structs.replace(plan, options=Options()), backend)
    job.wait()
    start_exporters(plan, backend, command=[sys.executable, "-c", "raise SystemExit('no module \x1b[2J')"])
    wait_for_logs(home.job("a").exports)
    deadline = time.monotonic() + 20
    while (trackers := job.describe()["Herringbone"]["Trackers"])[0]["State"] == "Exporting":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    to = f"tensorboard:{os.getcwd()}/runs"
    assert trackers[0] == {
        "To": to,
        "State": "Interrupted",
        "Values": 0,
        "Error": f"no module \\x1b[2J; `herringbone export a --to {to}` goes on where it ended",
    }
    # The job itself knows nothing of it, and goes with its exports.
    assert job.status == "Completed"
    job.remove()
    assert not home.job("a").path.exists()
