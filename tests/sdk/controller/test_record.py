"""The end of a job reaches the index, also when the index cannot be written at that moment."""

from __future__ import annotations

import shutil
import sqlite3
import threading
import time
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from herringbone import Estimator
from herringbone.backends.process.backend import ProcessBackend
from herringbone.controller.record import IndexRecord
from herringbone.records.end_file import EndFile
from herringbone.records.home import Home
from herringbone.records.index import JobIndex, JobRecord
from herringbone_contract.errors import IndexBusyError

END = {
    "status": "Completed",
    "secondary_status": "Completed",
    "ended": 3.0,
    "failure": None,
    "model": "/a/model.tar.gz",
}
# A controller that runs nowhere.
DEAD = "4194304@1"


@pytest.fixture
def row(tmp_path: Path) -> Home:
    home = Home(tmp_path / "jobs-home")
    home.make()
    home.job("a").path.mkdir()
    plan = '{"hosts": [{"name": "algo-1"}]}'
    JobIndex(home.index).add(JobRecord(name="a", backend="local_process", plan=plan, created=1.0, controller=DEAD))
    return home


@contextmanager
def locked(index: Path):
    with closing(sqlite3.connect(index, isolation_level=None, check_same_thread=False)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        yield holder


def record_of(home: Home, **patience: float) -> IndexRecord:
    return IndexRecord(home.index, "a", busy_seconds=0.05, **patience)


def test_a_state_that_cannot_be_written_comes_with_the_next_one(row: Home) -> None:
    record = record_of(row)
    with locked(row.index):
        record.update(secondary_status="Training", started=2.0)
    record.update(secondary_status="Uploading")
    stored = JobIndex(row.index).get("a")
    assert (stored.started, stored.secondary_status) == (2.0, "Uploading")


def test_the_end_waits_for_a_lock(row: Home) -> None:
    with locked(row.index) as holder:
        waiting = threading.Thread(target=record_of(row).finish, kwargs=END)
        waiting.start()
        while EndFile(row.job("a").end).read() is None:
            time.sleep(0.01)
        assert waiting.is_alive()
        holder.rollback()
        waiting.join(10)
    stored = JobIndex(row.index).get("a")
    assert {name: getattr(stored, name) for name in END} == END
    assert not row.job("a").end.exists()


def test_an_end_that_was_never_written_is_found_by_the_next_look(row: Home, stand_in) -> None:
    with locked(row.index):
        record_of(row, patience=0.0).finish(**END)
    described = ProcessBackend(row, stand_in).describe("a")
    assert (described.status, described.model) == ("Completed", "/a/model.tar.gz")
    assert JobIndex(row.index).get("a") == described


@pytest.mark.parametrize("damage", [lambda file: file.write_bytes(b"no database at all" * 100), Path.unlink])
def test_an_index_that_was_damaged_or_removed_gets_the_row_again(row: Home, damage) -> None:
    record = record_of(row, patience=20.0)
    record.update(secondary_status="Training", started=2.0)
    damage(row.index)
    waiting = threading.Thread(target=record.finish, kwargs=END)
    waiting.start()
    time.sleep(0.2)
    if damage is not Path.unlink:
        # What the error about a damaged index says to do.
        row.index.unlink()
    waiting.join(10)
    stored = JobIndex(row.index).get("a")
    assert (stored.status, stored.model, stored.created) == ("Completed", "/a/model.tar.gz", 1.0)


def test_a_removed_home_ends_the_wait(row: Home) -> None:
    record = record_of(row)
    shutil.rmtree(row.job("a").path)
    with locked(row.index):
        record.finish(**END)


def test_a_job_runs_through_while_its_index_is_locked(script, home: Home, backend: ProcessBackend) -> None:
    script("import os, pathlib, time\ntime.sleep(1)\npathlib.Path(os.environ['SM_MODEL_DIR'], 'w').write_text('1')\n")
    job = Estimator("train.py", instance_type="local_process").fit(job_name="a", wait=False)
    while job.secondary_status == "Starting":
        time.sleep(0.01)
    with locked(home.index):
        while EndFile(home.job("a").end).read() is None:
            time.sleep(0.05)
        with pytest.raises(IndexBusyError, match="locked; another process holds it for too long"):
            JobIndex(home.index, busy_seconds=0.05).get("a")
    job.wait(timeout=20)
    assert (job.status, Path(str(job.model_data).removeprefix("file://")).exists()) == ("Completed", True)
