"""A job that is over has its report in its folder; nobody waits for it, and nothing fails with it."""

from __future__ import annotations

import os

import pytest
from tests.page.make_jobs import make_job
from tests.waiting import wait_until

from herringbone import Estimator
from herringbone.backends.lifecycle import settle
from herringbone.controller.report import start_report
from herringbone.records.index import JobIndex
from herringbone.system.processes import descendants
from herringbone_contract.failure import Failure


@pytest.fixture
def home(page, monkeypatch):
    """The home of all jobs of these tests, whose ends are reported."""
    monkeypatch.setenv("HERRINGBONE_REPORT", "on")
    return page.home


def waited(path):
    wait_until(path.exists, 30, f"no {path}")
    return path.read_text()


def test_the_controller_has_it_written(home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('hello from the script')")
    (tmp_path / "json.py").write_text("raise SystemExit('a module of the user was loaded')")
    job = Estimator(entry_point="train.py", instance_type="local_process").fit(job_name="at-end", logs=False)
    report = waited(home.job(job.name).report)
    assert "hello from the script" in report
    assert '"status":"Completed"' in report


@pytest.mark.parametrize(
    "truth",
    [Failure(message="the machine was lost"), {"status": "Completed", "secondary_status": "Completed", "ended": 5.0}],
)
def test_whoever_settles_a_job_has_it_written(home, truth):
    folder = make_job(home, f"settled-{type(truth).__name__}")
    settle(JobIndex(home.index), folder.path.name, {"secondary_status": "Uploading"})
    assert not folder.report.exists()
    settle(JobIndex(home.index), folder.path.name, truth)
    assert folder.path.name in waited(folder.report)


def test_the_writer_is_nobodys_child(home):
    make_job(home, "quick", status="Completed", secondary_status="Completed", ended=1.0)
    before = descendants({os.getpid()})
    start_report(str(home.path), "quick")
    assert descendants({os.getpid()}) == before
    waited(home.job("quick").report)


def test_a_job_without_a_folder_and_a_user_without_interest_get_none(home, monkeypatch):
    start_report(str(home.path), "of-a-service", pytest.fail)
    make_job(home, "unwanted")
    monkeypatch.setenv("HERRINGBONE_REPORT", "off")
    start_report(str(home.path), "unwanted", pytest.fail)
