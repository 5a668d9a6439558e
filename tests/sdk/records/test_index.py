"""The index of jobs: shared by processes, private to the user, and clear about errors of its file."""

import sqlite3
import subprocess
from contextlib import closing
from dataclasses import replace

import pytest

from herringbone.records.home import Home, find_home
from herringbone.records.index import PLAN_VERSION, JobIndex, JobRecord
from herringbone_contract.errors import HerringboneError, JobNameError, JobNotFoundError


def record(name="a", created=1.0):
    return JobRecord(name=name, backend="local_process", plan="{}", created=created)


@pytest.fixture
def index(tmp_path):
    return JobIndex(tmp_path / "index.sqlite")


def test_a_row_is_stored_and_changed(index):
    index.add(record())
    assert index.get("a") == record()
    assert index.update("a", status="Completed", ended=2.0)
    assert (index.get("a").status, index.get("a").ended, index.get("a").done) == ("Completed", 2.0, True)
    assert not index.update("a", unless_done=True, status="Failed")
    assert index.get("a").status == "Completed"


def test_the_newest_job_is_first(index):
    for number, name in enumerate("abc"):
        index.add(record(name, created=float(number)))
    assert [row.name for row in index.all()] == ["c", "b", "a"]
    index.remove("b")
    assert [row.name for row in index.all()] == ["c", "a"]


def test_reading_creates_no_file(index, tmp_path):
    assert index.all() == []
    with pytest.raises(JobNotFoundError):
        index.get("a")
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_name_is_answered_with_similar_names(index):
    index.add(record("digits-1"))
    with pytest.raises(JobNotFoundError, match=r"no job 'digit-1' in .*; did you mean digits-1\?"):
        index.get("digit-1")
    index.add(record("train-2026-11-22-12-29-26-475"))
    with pytest.raises(JobNotFoundError, match="did you mean train-2026-11-22-12-29-26-475"):
        index.get("trian")
    with pytest.raises(JobNotFoundError, match="`herringbone ls` shows the jobs"):
        index.get("zzzzz")


def test_a_taken_name_is_refused(index):
    index.add(record())
    with pytest.raises(JobNameError, match="job name 'a' is taken; choose another"):
        index.add(record())


RACER = """
import sys
from pathlib import Path
from herringbone.records.index import PLAN_VERSION, JobIndex, JobRecord
from herringbone_contract.errors import JobNameError
sys.stdin.read()                          # all racers start together
try:
    JobIndex(Path(sys.argv[1])).add(JobRecord(name="a", backend="b", plan="{}", created=1.0))
    print("won")
except JobNameError:
    print("taken")
"""


def test_one_of_many_racing_processes_gets_the_name(index, tmp_path, start_python):
    """The file does not exist, so the processes also race for the creation of the table."""
    racers = [start_python(RACER, str(tmp_path / "index.sqlite"), stdin=subprocess.PIPE) for _ in range(4)]
    for racer in racers:
        racer.stdin.close()
    answers = [racer.stdout.read().strip() for racer in racers]
    assert sorted(answers) == ["taken", "taken", "taken", "won"]


def test_a_damaged_file_is_reported(index, tmp_path):
    (tmp_path / "index.sqlite").write_text("not a database, but long enough to have a header" * 10)
    with pytest.raises(HerringboneError, match="file is not a database; it is damaged: move it away"):
        index.all()


def test_a_newer_file_is_reported(index, tmp_path):
    with sqlite3.connect(tmp_path / "index.sqlite") as database:
        database.execute("PRAGMA user_version = 9")
    database.close()
    with pytest.raises(HerringboneError, match="made by a newer Herringbone"):
        index.all()


def test_a_locked_file_is_reported(index, tmp_path):
    impatient = JobIndex(tmp_path / "index.sqlite", busy_seconds=0.05)
    impatient.add(record())
    holder = sqlite3.connect(tmp_path / "index.sqlite", isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(HerringboneError, match="locked; another process holds it for too long"):
        impatient.get("a")
    holder.close()
    assert impatient.get("a") == record()


def test_a_home_that_cannot_be_created_is_reported(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(HerringboneError, match="cannot be created: Not a directory; set HERRINGBONE_HOME"):
        Home(tmp_path / "file/home").make()


def test_the_home_is_private(tmp_path, monkeypatch):
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "h"))
    find_home().make()
    assert (tmp_path / "h").stat().st_mode & 0o777 == 0o700


FIRST_FORMAT = """
CREATE TABLE jobs (
    name TEXT PRIMARY KEY, backend TEXT NOT NULL, plan TEXT NOT NULL,
    status TEXT NOT NULL, secondary_status TEXT NOT NULL,
    created REAL NOT NULL, started REAL, ended REAL,
    client TEXT, keeper TEXT, run_folder TEXT, stop_grace REAL,
    failure TEXT, model TEXT
);
INSERT INTO jobs (name, backend, plan, status, secondary_status, created, keeper, model)
    VALUES ('old', 'local_process', '{}', 'Completed', 'Completed', 1.0, '12@34', '/m');
PRAGMA user_version = 1;
"""
SECOND_FORMAT = f"""
{FIRST_FORMAT}
ALTER TABLE jobs ADD COLUMN service TEXT;
ALTER TABLE jobs ADD COLUMN description TEXT;
PRAGMA user_version = 2;
"""
FOURTH_FORMAT = f"""
{SECOND_FORMAT}
ALTER TABLE jobs RENAME COLUMN keeper TO controller;
ALTER TABLE jobs ADD COLUMN place TEXT;
ALTER TABLE jobs ADD COLUMN plan_version INTEGER;
PRAGMA user_version = 4;
"""
FOURTH_FORMAT_WITH_HOSTS = f"{FOURTH_FORMAT} ALTER TABLE jobs ADD COLUMN hosts INTEGER;"


@pytest.mark.parametrize("earlier", [FIRST_FORMAT, SECOND_FORMAT, FOURTH_FORMAT, FOURTH_FORMAT_WITH_HOSTS])
def test_an_index_of_an_earlier_format_is_migrated(index, tmp_path, earlier):
    with closing(sqlite3.connect(tmp_path / "index.sqlite")) as database:
        database.executescript(earlier)
    old = index.get("old")
    assert (old.controller, old.model, old.service, old.description) == ("12@34", "/m", None, None)
    assert (old.place, old.plan_version) == (None, None)
    assert index.update("old", service="{}", description="{}")
    index.add(record("new"))
    assert [row.name for row in JobIndex(tmp_path / "index.sqlite").all()] == ["new", "old"]


def test_an_index_with_further_columns_of_a_newer_release_is_read_and_written(index, tmp_path):
    """A controller that started before an upgrade must still be able to end its job."""
    index.add(record())
    with closing(sqlite3.connect(tmp_path / "index.sqlite")) as database:
        database.executescript("ALTER TABLE jobs ADD COLUMN slots TEXT; PRAGMA user_version = 99")
    assert index.update("a", status="Completed", model="/m")
    assert index.get("a").model == "/m"
    index.add(record("b"))
    assert [row.plan_version for row in index.all()] == [PLAN_VERSION, PLAN_VERSION]


def test_a_summary_has_no_plan_and_counts_the_hosts(index):
    plan = '{"hosts": [{"name": "algo-1"}, {"name": "algo-2"}]}'
    row = record("a", created=2.0)
    index.add(replace(row, plan=plan, hosts=2, failure="{}", description="{}"))
    # As rows of an earlier release, which tell the number of hosts only by their plan.
    index.add(replace(row, name="old", created=1.0, plan=plan))
    summaries = index.summaries()
    assert [(row.name, row.num_hosts, row.plan) for row in summaries] == [("a", 2, "{}"), ("old", 2, plan)]
    assert [(row.failure, row.description) for row in summaries] == [(None, None)] * 2
    index.update("a", status="Stopped")
    assert [row.name for row in index.running()] == ["old"]
