"""A rehearsal that cannot be is refused before its first run, or after it where only a run can tell."""

import json
import time

import pytest

from herringbone import Estimator
from herringbone.backends.rehearsed import key_of, rehearsed
from herringbone.cli.__main__ import main
from herringbone.records.index import JobIndex, JobRecord
from herringbone.records.rehearsals import RESULT, make_folder
from herringbone_contract.errors import InputError, JobNameError, LaunchError, OptionError, UnsupportedError
from herringbone_contract.rehearsal.verdict import Finding, Outcome, Reason, Verdict


@pytest.fixture
def script(tmp_path, monkeypatch, home):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("pass\n")
    return "train.py"


def names(home):
    return JobIndex(home.index).names()


@pytest.mark.parametrize(
    ("given", "called", "error", "message"),
    [
        ({}, {"faults": ["rank-kiled"]}, OptionError, "did you mean rank-killed"),
        ({}, {"across": ["local_process", "cloud"]}, UnsupportedError, "no backend for it"),
        ({}, {"job_name": "a" * 41}, JobNameError, "at most 40 letters"),
        ({}, {"job_name": "../a"}, JobNameError, "use 1 to 63 letters"),
        ({"distribution": "auto"}, {}, OptionError, "name the one that `plan` chooses"),
        ({"instance_type": "ssh:hosts.yaml"}, {}, OptionError, "checkpoint_s3_uri: jobs of ssh"),
        ({"entry_point": "none.py"}, {}, InputError, "none.py"),
    ],
)
def test_a_mistake_is_refused_before_anything_starts(script, home, given, called, error, message):
    estimator = Estimator(**{"entry_point": script, "instance_type": "local_process", **given})
    with pytest.raises(error, match=message):
        estimator.rehearse(**called)
    assert (names(home), home.rehearsals.exists()) == ([], False)


def test_jobs_that_are_billed_need_a_yes(script, home, monkeypatch):
    monkeypatch.setattr("herringbone.api.rehearsal.plan_request", lambda *_: None)
    estimator = Estimator(script, instance_type="ml.m5.large", role="r", image_uri="123.dkr.ecr.x.amazonaws.com/a:1")
    with pytest.raises(OptionError, match=r"on ml.m5.large is up to 6 training jobs, each of which AWS bills; say"):
        estimator.rehearse(faults=["stop-resume", "rank-killed"])
    assert not home.rehearsals.exists()


def test_a_script_without_checkpoints_is_named_before_any_fault(script, home):
    with pytest.raises(InputError, match=r"saved no checkpoint.* SM_CHECKPOINT_DIR"):
        Estimator(script, instance_type="local_process").rehearse(job_name="digits")
    assert (names(home), list(home.rehearsals.iterdir())) == (["digits-undisturbed-1"], [])
    # Its name is taken by now.
    with pytest.raises(JobNameError, match="there is a job digits-undisturbed-1"):
        Estimator(script, instance_type="local_process").rehearse(job_name="digits")


def test_a_script_that_fails_by_itself_is_named(script, home, capfd):
    with open(script, "w") as file:
        file.write("raise ValueError('boom')\n")
    assert main(["rehearse", script, "--job-name", "digits", "--json"]) == 1
    captured = capfd.readouterr()
    assert "does not complete without a fault: digits-undisturbed-1 is Failed: rank 0" in captured.err
    assert "boom" in captured.err
    assert captured.out == ""
    with pytest.raises(LaunchError):
        Estimator(script, instance_type="local_process").rehearse(job_name="other")


def test_a_name_has_one_rehearsal(home):
    make_folder(home, "digits")
    with pytest.raises(JobNameError, match="rehearsal 'digits': there is one of this name"):
        make_folder(home, "digits")


def job(home, name, text="pass", backend="local_process", **plan):
    code = home.job(name).host("algo-1") / "code"
    code.mkdir(parents=True)
    (code / "train.py").write_text(text)
    members = {
        "hosts": [{"name": "algo-1"}],
        "source": {"entry_point": "train.py"},
        "distribution": {"mpi": {}},
        **plan,
    }
    started = time.time() + 1
    return JobRecord(name=name, backend=backend, plan=json.dumps(members), created=started, started=started)


def test_a_later_job_of_the_same_code_is_said_to_be_rehearsed(home):
    home.make()
    first = job(home, "a")
    assert rehearsed(first, home) == ""
    folder = make_folder(home, "digits-1")
    result = {"name": "digits-1", "ended": 1_796_000_000.0, "summary": "9 of 9 equal", "keys": [key_of(first, home)]}
    (folder / RESULT).write_text(json.dumps(result))
    (make_folder(home, "torn") / RESULT).write_text('{"name": "torn", "en')
    assert rehearsed(job(home, "b"), home) == "rehearsed 2026-11-30: 9 of 9 equal (digits-1)"
    other = [
        job(home, "c", text="other"), job(home, "d", backend="local"), job(home, "e", distribution=None),
        job(home, "f", arguments={"image_uri": "mine:1"}),
    ]  # fmt: skip
    assert [rehearsed(record, home) for record in other] == [""] * 4


def test_files_that_the_script_made_are_no_code(home):
    home.make()
    record = job(home, "a")
    before = key_of(record, home)
    made = home.job("a").host("algo-1") / "code" / "log.txt"
    made.write_text("x")
    import os

    os.utime(made, (record.started + 5,) * 2)
    assert key_of(record, home) == before


def test_a_script_that_is_not_recorded_is_neither_equal_nor_different(tmp_path, home, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(
        "import os, pathlib, time\nfile = pathlib.Path(os.environ['SM_CHECKPOINT_DIR'], 'step')\n"
        "for step in range(int(file.read_text()) if file.exists() else 0, 15):\n"
        "    time.sleep(0.1)\n    file.with_suffix('.part').write_text(str(step))\n"
        "    file.with_suffix('.part').replace(file)\n"
    )
    different = Verdict(Outcome.DIFFERENT, (Finding(Reason.WEIGHTS, 1, 0, "", "others", "load them"),))
    monkeypatch.setattr("herringbone.rehearsal.rehearse.compare", lambda *_, **__: different)
    result = Estimator("train.py", instance_type="local_process").rehearse(faults=["rank-killed"], job_name="digits")
    assert [(row.fault, row.equal) for row in result.rows] == [("undisturbed", "unknown"), ("rank-killed", "unknown")]
    assert result.rows[1].text.startswith("the undisturbed runs are not recorded; step 1: others")
    assert (result.ok, len(result.rows[1].jobs)) == (False, 2)
