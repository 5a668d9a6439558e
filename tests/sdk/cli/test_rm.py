"""`herringbone rm`, over rows and folders that are made by hand."""

import json
import os
import pty
import subprocess
import sys

import pytest

from herringbone.records.index import JobIndex, JobRecord
from herringbone.system.processes import identity


@pytest.fixture
def jobs(home):
    """Jobs of different ends, the newest last, and one that runs; returns their names."""
    home.make()
    for created, (name, status) in enumerate(
        [("digits-1", "Completed"), ("digits-2", "Failed"), ("train-3", "Completed"), ("runs-4", "InProgress")]
    ):
        home.job(name).logs.mkdir(parents=True)
        (home.job(name).logs / "algo-1.log").write_bytes(bytes(100_000))
        columns = {"client": identity(os.getpid())} if status == "InProgress" else {"ended": float(created)}
        row = JobRecord(name=name, backend="local_process", plan="{}", created=float(created), status=status, **columns)
        JobIndex(home.index).add(row)
    return lambda: JobIndex(home.index).names()


def test_named_jobs_are_removed_without_a_question(herringbone, jobs):
    code, out, err = herringbone("rm", "train", "digits-1", "--dry-run")
    assert (code, err, len(jobs())) == (0, "", 4)
    assert [line.split()[0] for line in out.splitlines()] == ["NAME", "train-3", "digits-1", "would"]
    assert out.endswith(" of 2 jobs\n")
    code, out, err = herringbone("rm", "train-3", "digits-1", "--json")
    assert [(item["name"], item["size"] >= 100_000, item["error"]) for item in json.loads(out)] == [
        ("train-3", True, ""),
        ("digits-1", True, ""),
    ]
    assert (code, err, jobs()) == (0, "", ["runs-4", "digits-2"])


@pytest.mark.parametrize("words", [["-"], ["--last"], ["train"], ["digits-1", "train"]])
def test_a_job_that_is_not_named_in_full_needs_a_yes(herringbone, jobs, home, words):
    """After a `run` that was refused, `-` is the job before it."""
    JobIndex(home.index).update("runs-4", status="Completed", ended=4.0)
    code, out, err = herringbone("rm", *words)
    assert (code, out, len(jobs())) == (2, "", 4)
    assert ("runs-4" if "-" in words[0][:2] else "train-3") in err
    assert "add --yes to remove these jobs" in err
    assert herringbone("rm", *words, "--yes")[0] == 0
    assert len(jobs()) == 4 - len(words)


def test_the_exit_code_tells_whether_something_was_removed(herringbone, jobs):
    code, out, err = herringbone("rm", "--last")
    assert (code, out) == (2, "")
    assert err == "herringbone: job runs-4 is InProgress: stop it first (`herringbone stop runs-4`)\n"
    code, out, err = herringbone("rm", "runs-4", "train-3")
    assert (code, "train-3" in out, "stop it first" in err) == (1, True, True)
    assert jobs() == ["runs-4", "digits-2", "digits-1"]


def test_chosen_jobs_need_a_yes(herringbone, jobs):
    code, out, err = herringbone("rm", "--older-than", "1d", "--status", "Completed")
    assert (code, out) == (2, "")
    assert "train-3" in err
    assert "add --yes" in err
    ours, terminal = pty.openpty()
    os.write(ours, b"n\n")
    command = [sys.executable, "-m", "herringbone", "rm", "--status", "Completed"]
    run = subprocess.run(command, stdin=terminal, capture_output=True, text=True)
    os.close(ours)
    os.close(terminal)
    assert (run.returncode, len(jobs())) == (2, 4)
    assert "remove these 2 jobs? [y/N]:" in run.stderr
    code, out, _ = herringbone("rm", "--older-than", "1d", "--status", "Completed", "--yes")
    assert (code, jobs()) == (0, ["runs-4", "digits-2"])
    assert herringbone("rm", "--older-than", "0m", "--status", "Stopped")[:2] == (0, "freed 0 bytes of 0 jobs\n")


def test_chosen_jobs_can_have_exceptions(herringbone, jobs):
    code, _, _ = herringbone("rm", "--older-than", "0m", "--except", "train", "--except", "digits-1", "--yes")
    assert (code, jobs()) == (0, ["runs-4", "train-3", "digits-1"])
    # In letters of any case, as everywhere else.
    assert herringbone("rm", "--status", "completed", "--except", "train", "--yes")[0] == 0
    assert jobs() == ["runs-4", "train-3"]


def test_a_removed_log_is_named(herringbone, jobs, home):
    model = home.job("train-3").output / "model.tar.gz"
    model.parent.mkdir()
    model.write_bytes(b"x")
    JobIndex(home.index).update("train-3", model=str(model))
    assert "removed" not in herringbone("metrics", "train-3")[2]
    assert herringbone("rm", "train-3", "--keep-model")[0] == 0
    for verb in ("logs", "metrics"):
        assert "job train-3: its log was removed by `herringbone rm --keep-model`" in herringbone(verb, "train-3")[2]
    code, _, err = herringbone("download", "train-3", "logs")
    assert (code, "its log was removed" in err) == (2, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["digits-1", "--except", "train-3"], "Names and --except exclude each other"),
        (["--except", "train-3"], "--except needs --older-than or --status"),
        (["--status", "complete"], "did you mean Completed?"),
        ([], "Missing argument 'NAME'"),
        (["digits-1", "--older-than", "1d"], "Names and filters exclude each other"),
        (["--older-than", "soon"], "is no age; write 30d, 12h, 90m or 0m"),
        (["--status", "InProgress"], "is no status of a job that is over; expected one of Completed, Failed, Stopped"),
        (["nosuch"], "no job 'nosuch'"),
        (["../jobs"], "it would lead to another folder"),
    ],
)
def test_mistakes_remove_nothing(herringbone, jobs, words, message):
    code, _, err = herringbone("rm", *words)
    assert (code, len(jobs())) == (2, 4)
    assert message in err


def test_a_folder_without_a_row_is_removed_by_its_whole_name(herringbone, jobs, home):
    (home.path / "jobs" / "train").mkdir()
    assert herringbone("rm", "train")[0] == 0
    assert "train-3" in jobs()
    assert not (home.path / "jobs" / "train").exists()
