"""Removal: the row and the folder go together, and nothing outside of the folder goes."""

import json
import multiprocessing
import os
import subprocess
from pathlib import Path

import pytest

from herringbone import TrainingJob
from herringbone.backends.listing import all_jobs
from herringbone.backends.removal import remove_job, remove_jobs, select_jobs
from herringbone.records.end_file import EndFile
from herringbone.records.home import Home
from herringbone.records.index import COMPLETED, FAILED, IN_PROGRESS, JobIndex, JobRecord
from herringbone.system.processes import identity
from herringbone_contract.errors import IndexBusyError, InputError, JobNotFoundError, OptionError

DAY = 86_400.0
BIG = 300_000


@pytest.fixture
def make_job(home):
    """Makes a job as its controller leaves it: a row, logs, a host's tree, and a packed model unless it failed."""
    home.make()

    def make(name, status=COMPLETED, *, row=True, folder=True, ended=1_000.0, **columns) -> Path:
        path = home.job(name).path
        model = path / "output" / "model.tar.gz"
        if folder:
            (home.job(name).host("algo-1") / "checkpoints").mkdir(parents=True)
            (home.job(name).host("algo-1") / "checkpoints" / "last.pt").write_bytes(os.urandom(BIG))
            home.job(name).logs.mkdir()
            home.job(name).log("algo-1").write_text("2026-11-21T11:44:37.123456Z [algo-1:0] hello\n")
            if status == COMPLETED:
                model.parent.mkdir()
                model.write_bytes(os.urandom(BIG))
                (model.parent / "output.tar.gz").write_bytes(b"1")
        if row:
            columns = {"model": str(model) if status == COMPLETED else None, **columns}
            options = (
                {"checkpoint_s3_uri": str(checkpoints)} if (checkpoints := columns.pop("checkpoints", None)) else {}
            )
            plan = json.dumps({"hosts": [{"name": "algo-1"}], "options": options})
            done = {"ended": ended} if status != IN_PROGRESS else {}
            record = JobRecord(
                name=name, backend="local_process", plan=plan, status=status, created=1.0, **done, **columns
            )
            JobIndex(home.index).add(record)
        return path

    return make


def names(home: Home) -> list[str]:
    return sorted(record.name for record in JobIndex(home.index).all())


def entries(home: Home) -> list[str]:
    return sorted(os.listdir(home.path / "jobs"))


def test_row_and_folder_go_together(make_job, home):
    make_job("a")
    make_job("b")
    (planned,) = remove_jobs(["a"], dry_run=True)
    assert 2 * BIG < planned.size < 3 * BIG
    assert names(home) == entries(home) == ["a", "b"]
    assert TrainingJob.attach("a").remove() == planned
    assert names(home) == entries(home) == ["b"]
    with pytest.raises(JobNotFoundError, match="no job 'a' in"):
        remove_job("a")


def test_a_job_that_runs_is_refused_and_the_others_go(make_job, home):
    make_job("runs", IN_PROGRESS, client=identity(os.getpid()))
    make_job("over")
    runs, over, unknown = remove_jobs(["runs", "over", "nosuch", "over"])
    assert runs.error == "job runs is InProgress: stop it first (`herringbone stop runs`)"
    assert over.error == ""
    assert "no job 'nosuch'" in unknown.error
    assert names(home) == entries(home) == ["runs"]
    with pytest.raises(InputError, match="stop it first"):
        TrainingJob.attach("runs").remove()


def test_a_job_whose_controller_was_killed_is_over(make_job, home):
    make_job("lost", IN_PROGRESS, controller="999999999@1")
    assert remove_jobs(["lost"])[0].error == ""
    assert (names(home), entries(home)) == ([], [])


def test_a_row_without_folder_and_a_folder_without_row_are_removed(make_job, home):
    make_job("row", folder=False)
    make_job("folder", row=False)
    assert [removal.error for removal in remove_jobs(["row", "folder"])] == ["", ""]
    assert (names(home), entries(home)) == ([], [])


def test_an_interrupted_removal_is_finished_by_the_next(make_job, home, monkeypatch):
    make_job("a")
    monkeypatch.setattr("herringbone.backends.removal.remove", lambda path: os.kill(os.getpid(), 9))
    process = multiprocessing.get_context("fork").Process(target=remove_job, args=("a",))
    process.start()
    process.join()
    monkeypatch.undo()
    monkeypatch.setenv("HERRINGBONE_HOME", str(home.path))
    assert process.exitcode == -9
    assert names(home) == []
    assert [name.startswith(".removed-a-") for name in entries(home)] == [True]
    # The name is free at once.
    make_job("a")
    make_job("b")
    finished, removed = remove_jobs(["b"])
    assert (finished.name, removed.name) == ("a", "b")
    assert finished.size > 2 * BIG
    assert names(home) == entries(home) == ["a"]


def test_files_of_another_user_are_named_and_tried_again(make_job, home, monkeypatch):
    make_job("a")

    def refuse(path):
        raise PermissionError(1, "Operation not permitted", "hosts/algo-1/ml/model/w")

    with monkeypatch.context() as patched:
        patched.setattr("herringbone.backends.removal.remove", refuse)
        (removal,) = remove_jobs(["a"])
        assert removal.size == 0
        assert "hosts/algo-1/ml/model/w: Operation not permitted; the rest is in" in removal.error
        assert "need that user, or `sudo rm -r`" in removal.error
        assert [bool(again.error) for again in remove_jobs([])] == [True]
    assert names(home) == []
    assert [(again.name, again.error) for again in remove_jobs([])] == [("a", "")]
    assert entries(home) == []


def test_a_removal_that_is_killed_with_the_index_locked_changes_nothing(make_job, home):
    make_job("a")
    with pytest.raises(KeyboardInterrupt), JobIndex(home.index).holding("a", remove=True):
        raise KeyboardInterrupt
    assert names(home) == ["a"]


def test_no_link_is_followed(make_job, home, tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("precious")
    job = make_job("a")
    (job / "hosts/algo-1/ml/input").mkdir()
    (job / "hosts/algo-1/ml/input/data").symlink_to(precious)
    (job / "hosts/algo-1/ml/model").symlink_to(precious)
    elsewhere = tmp_path / "elsewhere"
    make_job("moved").rename(elsewhere)
    (home.path / "jobs/moved").symlink_to(elsewhere)
    first, second = remove_jobs(["a", "moved"])
    assert (first.elsewhere, second.elsewhere) == (
        "",
        f"{home.path}/jobs/moved was a link; the folder {elsewhere} stays",
    )
    assert (names(home), entries(home)) == ([], [])
    assert os.listdir(precious) == ["file"]
    assert (elsewhere / "logs").is_dir()


def test_a_kept_model_keeps_its_row(make_job, home):
    job = make_job("a")
    make_job("failed", FAILED)
    kept, failed = remove_jobs(["a", "failed"], keep_model=True)
    assert (kept.model, failed.model) == (str(job / "output/model.tar.gz"), None)
    assert BIG < kept.size < 2 * BIG
    assert sorted(str(path.relative_to(job)) for path in job.rglob("*")) == ["output", "output/model.tar.gz"]
    assert names(home) == entries(home) == ["a"]
    assert list(TrainingJob.attach("a").logs()) == []
    assert remove_jobs(["a"], keep_model=True)[0].size == 0
    assert remove_jobs(["a"])[0].size > BIG
    assert (names(home), entries(home)) == ([], [])


def test_models_in_folders_of_the_user_always_stay(make_job, home, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/model.tar.gz").write_text("1")
    for name in ("kept", "gone"):
        make_job(name, FAILED, model=str(tmp_path / "mine/model.tar.gz"))
    assert remove_jobs(["kept"], keep_model=True)[0].model == str(tmp_path / "mine/model.tar.gz")
    assert remove_jobs(["gone"])[0].error == ""
    assert names(home) == entries(home) == ["kept"]
    assert os.listdir(tmp_path / "mine") == ["model.tar.gz"]


def test_the_copied_checkpoints_of_a_resumed_job_go_with_the_last_job_that_names_them(make_job, home, tmp_path):
    copied, mine = home.checkpoints / "first", tmp_path / "mine"
    for folder in (copied, mine):
        folder.mkdir(parents=True)
        (folder / "last.pt").write_bytes(os.urandom(BIG))
    for name, checkpoints in (("second", copied), ("third", copied), ("own", mine)):
        make_job(name, folder=False, checkpoints=checkpoints)
    assert [removal.size for removal in remove_jobs(["second", "own"])] == [0, 0]
    assert copied.exists()
    assert remove_jobs(["third"])[0].size > BIG
    assert (copied.exists(), mine.exists()) == (False, True)


def test_a_model_that_is_not_packed_is_not_lost(make_job, home):
    job = make_job("a", FAILED)
    (job / "hosts/algo-1/ml/model").mkdir()
    (job / "hosts/algo-1/ml/model/weights").touch()
    (refused,) = remove_jobs(["a"], keep_model=True)
    assert "but no packed model; pack it first (`herringbone repack a`)" in refused.error
    assert names(home) == entries(home) == ["a"]
    assert remove_jobs(["a"])[0].error == ""


def test_jobs_are_chosen_by_age_and_status(make_job, home):
    make_job("old", ended=0.0)
    make_job("older-failed", FAILED, ended=-DAY)
    make_job("new", ended=29 * DAY)
    make_job("runs", IN_PROGRESS, client=identity(os.getpid()))
    os.utime(make_job("no-row", row=False), (0, 0))
    (home.path / "jobs/notes").mkdir()

    def select(**choice):
        return select_jobs(now=30 * DAY, **choice)

    assert select(older_than=30 * DAY) == ["older-failed", "old", "no-row"]
    assert select(statuses=[FAILED]) == ["older-failed"]
    assert select(older_than=DAY, statuses=[COMPLETED]) == ["old", "new"]
    with pytest.raises(OptionError, match="'Running': jobs end as Completed, Failed, Stopped"):
        select(statuses=["Running"])


def test_a_job_is_chosen_whose_end_the_index_could_not_take(make_job, home, monkeypatch):
    """As on a disk that the job has filled: the end is in the job's folder, and no row can be written."""
    job = make_job("full", IN_PROGRESS, controller=identity(os.getpid()))
    EndFile(home.job("full").end).write({"status": FAILED, "secondary_status": FAILED, "ended": 1_000.0})

    def refuse(*_, **__):
        raise IndexBusyError("the disk is full")

    with monkeypatch.context() as full:
        full.setattr(JobIndex, "update", refuse)
        assert select_jobs(now=30 * DAY, home=home) == ["full"]
    assert remove_jobs(select_jobs(statuses=[FAILED]))[0].error == ""
    assert not job.exists()


REMOVER = """
import json, sys
from herringbone.backends.removal import remove_jobs
sys.stdin.read()                          # all start together
print(json.dumps([removal.error for removal in remove_jobs(["a", "b"])]))
"""


def test_processes_that_remove_one_job_do_not_disturb_each_other(make_job, home, start_python):
    for name in ("a", "b"):
        job = make_job(name)
        for number in range(200):
            (job / f"hosts/{number}").mkdir()
    removers = [start_python(REMOVER, stdin=subprocess.PIPE) for _ in range(3)]
    for remover in removers:
        remover.stdin.close()
    for remover in removers:
        for error in json.loads(remover.stdout.read()):
            assert error == "" or "no job" in error or "was removed by another process" in error
    assert (names(home), entries(home)) == ([], [])


def test_a_finished_controller_brings_no_removed_job_back(make_job, home):
    from herringbone.controller.record import IndexRecord

    make_job("a", IN_PROGRESS)
    record = IndexRecord(home.index, "a", patience=0, unsaved_patience=0)
    record.update(secondary_status="Training")
    JobIndex(home.index).update("a", status=COMPLETED)
    remove_job("a")
    record.finish(status=COMPLETED, secondary_status=COMPLETED, ended=1.0)
    assert all_jobs() == []
