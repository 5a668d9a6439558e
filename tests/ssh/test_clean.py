"""Tests of `herringbone hosts clean`: which files are stale, and which must stay."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from herringbone.backends.ssh.agent.cleanup import StaleFiles, Uses, clean, note_uses
from herringbone.backends.ssh.inspection.clean import clean as clean_machines
from herringbone.backends.ssh.machines.inventory import Machine, parse_inventory
from herringbone.cli.machines.hosts import cleaned_table
from herringbone.records.home import Home
from herringbone.records.index import COMPLETED, IN_PROGRESS, JobIndex, JobRecord
from herringbone.system.disk import size_of

from .conftest import expect
from .test_jobs import WAIT

NOW = 1_000_000.0
DAY = 86_400.0


@pytest.fixture
def work(tmp_path) -> Home:
    """A work folder with three jobs: one that ended 40 days ago, one that ended yesterday, and one that runs."""
    home = Home(tmp_path / "work")
    home.make()
    for name, days, digest in (("old", 40, "a"), ("new", 1, "b"), ("running", None, "c")):
        ended = None if days is None else NOW - days * DAY
        status = IN_PROGRESS if days is None else COMPLETED
        row = JobRecord(name=name, backend="host", plan="{}", created=NOW - 50 * DAY, status=status, ended=ended)
        JobIndex(home.index).add(row)
        home.job(name).logs.mkdir(parents=True)
        home.job(name).log("algo-1").write_bytes(bytes(100_000))
        note_uses(home.job(name).path, Uses(code=digest, data=(digest,), environment=digest))
    for folder in ("code", "data", "environments", "cache/environments"):
        (home.path / folder).mkdir(parents=True)
    for digest in ("a", "b", "c", "mine"):
        aged(home.path / "code" / f"{digest}.tar.gz", days=45)
        aged(home.path / "data" / digest / "x", days=45)
        aged(home.path / "environments" / digest / "herringbone-ready", days=45)
    aged(home.path / "data" / ".d.partial" / "x", days=2)
    aged(home.path / "cache" / "environments" / "e" / "herringbone-ready", days=2)
    aged(home.path / "environments" / "a.lock", days=45)
    (home.path / "cache" / "images").mkdir()
    aged(home.path / "cache" / "images" / "0a" / "x", days=45)
    return home


def aged(path: Path, *, days: float) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("content")
    for aging in (path, path.parent):
        os.utime(aging, (NOW - days * DAY,) * 2)


def removed(home: Home, *, older: float, idle: bool = True, dry: bool = False) -> list[tuple[str, str]]:
    mine = home.path / "environments" / "mine"
    stale_files = clean(home, older=older, now=NOW, idle=idle, environment=mine, dry=dry)
    assert [files.trouble for files in stale_files if files.trouble] == []
    return [(files.kind, files.name) for files in stale_files]


OLD = [
    ("job", "old"),
    ("code", "a.tar.gz"),
    ("code", "mine.tar.gz"),
    ("data", "a"),
    ("data", "mine"),
    ("environments", "a"),
    ("cache/images", "0a"),
]


def test_only_what_no_remaining_job_uses_is_removed(work):
    everything = set(work.path.rglob("*"))
    assert removed(work, older=30 * DAY, dry=True) == OLD
    assert set(work.path.rglob("*")) == everything
    assert removed(work, older=30 * DAY) == OLD
    assert [record.name for record in JobIndex(work.index).all()] == ["new", "running"]
    assert sorted(os.listdir(work.path / "data")) == [".d.partial", "b", "c"]
    assert sorted(os.listdir(work.path / "environments")) == ["a.lock", "b", "c", "mine"]
    assert removed(work, older=30 * DAY) == []


def test_nothing_of_a_running_job_is_removed_at_any_age(work):
    kinds = removed(work, older=0)
    assert ("job", "running") not in kinds
    assert [name for kind, name in kinds if "c" in name.partition(".")[0].split()] == []
    assert ("data", ".d.partial") in kinds
    assert ("cache/environments", "e") in kinds
    assert sorted(os.listdir(work.path / "data")) == ["c"]
    assert sorted(os.listdir(work.path / "environments")) == ["a.lock", "c", "mine"]


def test_on_a_machine_in_use_only_jobs_that_are_over_are_removed(work):
    assert removed(work, older=0, idle=False) == [("job", "new"), ("job", "old")]


def test_sizes_are_those_on_the_disk_and_links_are_not_followed(tmp_path):
    (tmp_path / "big").write_bytes(bytes(range(256)) * 4096)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "link").symlink_to(tmp_path / "big")
    assert size_of(tmp_path / "big") >= 1 << 20
    assert size_of(tmp_path / "folder") < 1 << 16


def test_the_table():
    from herringbone.backends.ssh.inspection.clean import CleanupReport

    reports = [
        CleanupReport(name="h-1", stale_files=[StaleFiles(kind="job", name="a", size=2_000_000, age=DAY)], runs="b"),
        CleanupReport(name="h-2", trouble="h-2: no route"),
    ]
    assert cleaned_table(reports, dry=True) == [
        "HOST  KIND  NAME  AGE    SIZE",
        "h-1   job   a     1.0 d  2.0 MB",
        "would free 2.0 MB",
        "h-1: runs b: code, data and environments stay",
        "problem: h-2: no route",
    ]


@pytest.mark.ssh
def test_machines_are_cleaned_while_a_job_runs_on_one_of_them(submit, machines, transport):
    over = submit("print('over')", hosts=2)
    assert over.wait().status == "Completed"
    running = submit(WAIT, hosts=1)
    expect(running, "waits")
    inventory = parse_inventory(machines.inventory(), "hosts.yaml").machines
    unknown = Machine(name="h-9", host="no-such-host.invalid")
    dry = clean_machines([*inventory, unknown], transport, older=0, dry=True)
    assert dry[-1].trouble.startswith("h-9: no such host")
    reports = clean_machines(inventory, transport, older=0, dry=False)
    assert [report.runs for report in reports] == [running.name, "", ""]
    jobs = [{files.name for files in report.stale_files if files.kind == "job"} for report in reports]
    assert over.name in jobs[0] & jobs[1]
    assert running.name not in set.union(*jobs)
    assert all(files.size > 0 for report in reports for files in report.stale_files)
    # No job needs the uploads on h-2 any more; the environment is that of the asking Herringbone.
    kinds = {files.kind for files in reports[1].stale_files}
    assert "code" in kinds
    assert "environments" not in kinds
    assert not (machines.work("h-2") / "jobs" / over.name).exists()
    assert json.loads((machines.work("h-1") / "lock").read_text())["job"] == running.name
    assert running.status == "InProgress"
    running.stop()
    assert running.wait().status == "Stopped"
    assert submit("print('again')", hosts=3).wait().status == "Completed"
