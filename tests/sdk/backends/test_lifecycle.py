"""The life of a job's row without any backend: claimed, undone after an error, settled."""

import json
import os

import pytest

from herringbone import Estimator
from herringbone import TensorBoardOutputConfig as Board
from herringbone.api.job import attach
from herringbone.backends.lifecycle import claim, client_died, client_lives, model_of, poll_until_done, settle
from herringbone.cli.__main__ import main
from herringbone.records.home import Home
from herringbone.records.index import JobIndex, JobRecord
from herringbone.system.processes import identity, place, sees
from herringbone_contract.errors import IndexBusyError, InputError, JobNameError, LaunchError, UsageError


@pytest.fixture
def plan(script):
    script("")
    return Estimator("train.py", instance_type="local_process").plan(job_name="a")


def rows(home: Home) -> list[tuple[str, str]]:
    return [(row.name, row.status) for row in JobIndex(home.index).all()]


def fail(plan, home, error, *, keep=False, **options):
    with claim(plan, "local_process", home, **options) as job:
        job.make_folder()
        if keep:
            job.keep()
        raise error


def test_a_claim_names_the_client_and_holds_the_name(plan, home):
    with claim(plan, "local_process", home) as job:
        job.make_folder()
        assert client_lives(JobIndex(home.index).get("a"))
        with pytest.raises(JobNameError, match="'a' is taken"), claim(plan, "local_process", home):
            pass
    # The second claim failed, and must not have removed the row and the folder of the first one.
    assert rows(home) == [("a", "InProgress")]
    assert home.job("a").path.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("error", "raised"),
    [(ValueError("no"), ValueError), (OSError("disk full"), LaunchError), (SystemExit(), SystemExit)],
)
def test_an_error_removes_the_row_and_the_folder(plan, home, error, raised):
    with pytest.raises(raised):
        fail(plan, home, error)
    assert rows(home) == []
    assert not home.job("a").path.exists()


def test_the_first_error_is_told_when_the_index_cannot_be_written_either(plan, home, monkeypatch):
    def refuse(*_):
        raise IndexBusyError("full")

    monkeypatch.setattr(JobIndex, "remove", refuse)
    with pytest.raises(LaunchError, match="disk full"):
        fail(plan, home, OSError("disk full"))
    assert not home.job("a").path.exists()


def test_ctrl_c_leaves_a_stopped_job_unless_the_backend_undoes_it(plan, home):
    with pytest.raises(KeyboardInterrupt):
        fail(plan, home, KeyboardInterrupt(), stopped_on_interrupt=False)
    assert rows(home) == []
    with pytest.raises(KeyboardInterrupt):
        fail(plan, home, KeyboardInterrupt())
    assert rows(home) == [("a", "Stopped")]


def test_a_kept_claim_survives_an_error(plan, home):
    with pytest.raises(ValueError, match="no"):
        fail(plan, home, ValueError("no"), keep=True)
    assert rows(home) == [("a", "InProgress")]


def test_a_folder_of_a_forgotten_job_is_not_removed(plan, home):
    home.make()
    (home.job("a").path / "results").mkdir(parents=True)
    with pytest.raises(JobNameError, match=r"its folder .* already exists"):
        fail(plan, home, ValueError("never reached"))
    assert rows(home) == []
    assert (home.job("a").path / "results").exists()


def test_a_settled_end_never_changes(home):
    home.make()
    index = JobIndex(home.index)
    index.add(JobRecord(name="a", backend="b", plan="{}", created=1.0, client="1@0"))
    assert not client_lives(index.get("a"))
    lost = settle(index, "a", client_died("the job had a controller"))
    assert (lost.status, lost.ended is not None) == ("Failed", True)
    assert settle(index, "a", {"status": "Completed"}).status == "Failed"


def test_a_model_and_an_end_that_never_come():
    row = JobRecord(name="a", backend="b", plan="{}", created=1.0, client=identity(os.getpid()))
    with pytest.raises(InputError, match="job a is InProgress and has no model"):
        model_of(row)
    poll_until_done(lambda name: row, "a", seconds=0.01, pause=0.001)


HERE = "node-1 a1 boot-1 pid:[4026531836]"


@pytest.mark.parametrize(
    ("other", "seen"),
    [
        (HERE, True),
        # The host name of a machine may change while it runs.
        ("node-9 a1 boot-1 pid:[4026531836]", True),
        ("node-1 a1 boot-0 pid:[4026531836]", False),
        ("node-1 a1 boot-1 pid:[4026532444]", None),
        ("node-2 a2 boot-2 pid:[4026531836]", None),
        # Machines that are copies of one disk, and containers of one image.
        ("node-2 a1 boot-2 pid:[4026531836]", None),
        ("node-1 a1 boot-0 pid:[4026532444]", None),
        ("mac - - -", None),
    ],
)
def test_whose_processes_can_be_seen(other, seen):
    assert sees(other, HERE) is seen


def test_without_boots_and_namespaces_the_host_name_decides():
    assert sees("mac - - -", "mac - - -") is True
    assert sees("mac - - -", "mini - - -") is None


ELSEWHERE = "node-2 a2 boot-2 pid:[4026531836]"


def test_a_job_that_runs_elsewhere_is_left_alone(plan, home, backend, monkeypatch, capsys):
    """Its home is shared, its processes are not: nobody here knows whether they run."""
    index, run_folder = JobIndex(home.index), home.path / "hb-run"
    with claim(plan, "local_process", home) as job:
        job.make_folder()
    run_folder.mkdir()
    index.update("a", client=None, controller="4194304@1", run_folder=str(run_folder), place=ELSEWHERE)
    assert main(["ls"]) == 0
    shown = capsys.readouterr()
    assert "InProgress/Starting" in shown.out
    assert "job a was started on node-2, another machine or container" in shown.err
    assert run_folder.is_dir()
    assert main(["stop", "a"]) == 1
    assert "Look at it and stop it there" in capsys.readouterr().err
    # The same job, started here, is over.
    index.update("a", place=place())
    assert backend.describe("a").status == "Failed"
    assert not run_folder.exists()


def test_a_row_of_another_release_is_described_and_listed(home, capsys):
    home.make()
    index = JobIndex(home.index)
    plans = {"older": "{}", "newer": '{"hosts": [{"name": "algo-1"}], "options": {"colour": 1}, "slots": 3}'}
    for name, stored in plans.items():
        row = JobRecord(name=name, backend="local_process", plan=stored, created=1.0, status="Completed")
        index.add(row)
        assert main(["describe", name, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["TrainingJobStatus"] == "Completed"
        assert main(["logs", name]) == 0
        assert attach(name).metrics() == []
        with pytest.raises(InputError, match="written by another release of Herringbone"):
            _ = attach(name).plan
    index.update("newer", plan_version=2)
    with pytest.raises(InputError, match="format 2, and this Herringbone reads format 1"):
        _ = attach("newer").plan
    assert main(["ls"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["NAME", "newer", "older"]


def test_what_cannot_be_repacked_is_refused(script, home, capsys):
    script("")
    home.make()
    index = JobIndex(home.index)
    stored = json.dumps(Estimator("train.py", instance_type="local_process").plan(job_name="a").to_dict())
    index.add(JobRecord(name="a", backend="local_process", plan=stored, created=1.0, client=identity(os.getpid())))
    assert main(["repack", "a"]) == 2
    assert "job a is InProgress: it packs its model itself at its end" in capsys.readouterr().err
    index.update("a", status="Failed")
    assert main(["repack", "a"]) == 2
    assert "left no model: there are no files in" in capsys.readouterr().err


@pytest.mark.parametrize("path", ["/dev", "/proc/sys/kernel", "//dev/../sys"])
@pytest.mark.parametrize(
    "option", ["output_path", "checkpoint_s3_uri", "tensorboard_output_config", "dependencies", "source_dir", "track"]
)
def test_folders_of_the_kernel_are_refused_at_plan_by_name(script, option, path):
    """An output_path below /dev or /proc was made, filled or refused at the very end of the job."""
    script("pass")
    given = {"dependencies": [path], "track": [f"tensorboard:{path}"], "tensorboard_output_config": Board(path)}
    with pytest.raises(UsageError, match=rf"{option}.*: .* is below /(dev|proc|sys), where the kernel"):
        Estimator("train.py", instance_type="local_process", **{option: given.get(option, path)}).plan()
    with pytest.raises(UsageError, match=r"channel 'training': .* is below /"):
        Estimator("train.py", instance_type="local_process").plan(path)


def test_files_in_memory_and_the_users_own_folders_are_none_of_the_kernels(script):
    script("pass")
    for path in ("/dev/shm/results", "/proc/self/cwd/out", "/device"):
        Estimator("train.py", instance_type="local_process", output_path=path, checkpoint_s3_uri=path).plan()
