"""New jobs from earlier ones: their settings, inputs, code and checkpoints."""

import json
import os
from dataclasses import replace

import msgspec
import pytest

from herringbone import Estimator, InputError, OptionError, PyTorch
from herringbone.backends.results import fetch_checkpoints
from herringbone.cli.__main__ import main
from herringbone.plan.request import absolute, changed, make_request
from herringbone.records.checkpoints import copy_checkpoints
from herringbone.records.home import Home
from herringbone.records.index import JobIndex, JobRecord
from herringbone.system.processes import identity, place
from herringbone_contract.errors import JobNameError, LaunchError


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "home"))
    (tmp_path / "work" / "data").mkdir(parents=True)
    (tmp_path / "work" / "train.py").touch()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    home = Home(tmp_path / "home")
    home.make()
    return home


def submitted(home, *, name="one", status="Completed", inputs="data", **options):
    """Store a job as `fit` and its end do, without running it, and go to another folder."""
    arguments = {"entry_point": "train.py", "instance_type": "local_process", **options}
    plan = PyTorch(**arguments).plan(inputs, name)
    ended = None if status == "InProgress" else 2.0
    JobIndex(home.index).add(
        JobRecord(
            name=name,
            backend="local_process",
            plan=json.dumps(plan.to_dict()),
            created=1.0,
            ended=ended,
            status=status,
            secondary_status=status,
            # A row without a living process would be settled as failed.
            client=None if ended else identity(os.getpid()),
            place=place(),
        )
    )
    os.chdir(home.path.parent / "elsewhere")
    return plan


def checkpoint(home, name, host="algo-1", file="last.pt", text="x"):
    path = home.job(name).host(host) / "checkpoints" / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_job_like_one_that_queued_queues(home, monkeypatch):
    monkeypatch.setenv("HERRINGBONE_SLOTS", str(home.path.parent / "slots"))
    submitted(home)
    JobIndex(home.index).update("one", plan=json.dumps({**JobIndex(home.index).get("one").plan_dict, "queue": True}))
    os.chdir(home.path.parent / "work")
    jobs = [PyTorch.like("one").fit(logs=False, **choice) for choice in ({}, {"queue": False}, {"queue": True})]
    jobs.append(PyTorch("train.py", instance_type="local_process").fit(logs=False))
    queues = [JobIndex(home.index).get(job.name).plan_dict.get("queue", False) for job in jobs]
    assert queues == [True, False, True, False]


def test_the_settings_and_inputs_of_a_job_apply_again_from_any_folder(home):
    first = submitted(
        home,
        hyperparameters={"lr": 0.1, "epochs": 3},
        environment={"MODE": "fast"},
        max_run=60,
        checkpoint_s3_uri="file://kept",
        model_uri="data",
    )
    again = PyTorch.like("one", hyperparameters={"lr": 0.01}, environment={"N": "1"}, max_run="2h").plan(job_name="two")
    assert again.hyperparameters["lr"] == "0.01"
    assert again.hyperparameters["epochs"] == "3"
    assert again.environment == {"MODE": "fast", "N": "1"}
    assert again.options.max_run == 7200
    work = home.path.parent / "work"
    assert again.options.checkpoint_s3_uri == f"{work}/kept"
    assert [(channel.name, channel.path) for channel in again.channels] == [
        ("training", f"{work}/data"),
        ("model", f"{work}/data"),
    ]
    assert again.source == first.source
    other = PyTorch.like("one").plan({"test": str(work)})
    assert [channel.name for channel in other.channels] == ["test", "model"]


def test_an_inventory_is_found_from_any_folder(home):
    work = home.path.parent / "work"
    groups = [{"instance_group_name": "a", "instance_type": "ssh:hosts.yaml", "instance_count": 1}]
    for given, name in (({"instance_type": "ssh:hosts.yaml"}, "instance_type"), ({"instance_groups": groups}, "")):
        request = absolute(
            msgspec.structs.replace(make_request("PyTorch", {"image_uri": "a", **given}), folder=str(work))
        )
        found = request.arguments.instance_type if name else request.options.instance_groups[0].instance_type
        assert found == f"ssh:{work}/hosts.yaml"


def test_secrets_that_were_stored_masked_have_to_be_given_again(home):
    submitted(home, environment={"A_TOKEN": "hunter2"}, hyperparameters={"api_key": "hunter2", "lr": 1})
    with pytest.raises(InputError) as caught:
        PyTorch.like("one")
    assert str(caught.value) == (
        "job one: environment.A_TOKEN, hyperparameters.api_key: stored masked, because it looks like a secret; give it "
        "again (on the command line: --env A_TOKEN, which takes the value from your environment)"
    )
    attached = PyTorch.attach("one")
    attached.plan()
    with pytest.raises(InputError, match=r"job two: environment\.A_TOKEN, hyperparameters\.api_key: stored masked"):
        attached.fit(job_name="two")
    estimator = PyTorch.like("one", environment={"A_TOKEN": "new"}, hyperparameters={"api_key": "new"})
    assert estimator.options.environment == {"A_TOKEN": "new"}
    assert estimator.hyperparameters()["lr"] == "1"


def test_changes_replace_all_but_hyperparameters_and_variables():
    given = {"image_uri": "a", "instance_type": "local", "hyperparameters": {"a": 1}, "tags": {"a": "b"}}
    request = changed(make_request("PyTorch", given), {"tags": {"c": "d"}, "hyperparameters": {"b": 2}})
    assert (request.options.tags, request.arguments.hyperparameters) == ({"c": "d"}, {"a": 1, "b": 2})
    assert changed(request, {"hyperparameters": None}).arguments.hyperparameters == {}
    assert changed(request, {"environment": {"A": "b"}}).options.environment == {"A": "b"}


def test_a_resumed_job_begins_from_a_copy_of_the_checkpoints(home):
    submitted(home, instance_count=2)
    old, new = checkpoint(home, "one", text="old"), checkpoint(home, "one", "algo-2", text="new")
    os.utime(old, (1, 1))
    checkpoint(home, "one", "algo-2", "deep/step-1.pt")
    (new.parent / "latest").symlink_to("last.pt")
    estimator = PyTorch.like("one", resume=True)
    folder = home.path / "checkpoints" / "one"
    plan = estimator.plan()
    assert plan.options.checkpoint_s3_uri == str(folder)
    assert not folder.exists()  # a plan copies nothing
    copy_checkpoints(estimator._copied_checkpoints, folder, pytest.fail)
    assert (folder / "last.pt").read_text() == "new"
    assert (folder / "deep/step-1.pt").read_text() == "x"
    assert os.readlink(folder / "latest") == "last.pt"
    # Another job that begins there has a folder of its own.
    assert PyTorch.like("one", resume=True).options.checkpoint_s3_uri == f"{folder}-2"


def test_links_of_copied_checkpoints_lead_to_the_copies(home):
    """Scripts link `last.ckpt` to an absolute path. The new job wrote through that link into the earlier job's file."""
    submitted(home, instance_count=2)
    first = checkpoint(home, "one", "algo-1", "a.ckpt")
    second = checkpoint(home, "one", "algo-2", "deep/b.ckpt")
    first.with_name("last.ckpt").symlink_to(first)
    # By the path in a container, and to a file of another host, which is in the same folder afterwards.
    first.with_name("best.ckpt").symlink_to("/opt/ml/checkpoints/a.ckpt")
    (second.parent / "last.ckpt").symlink_to(second)
    for name, target in {
        "gone": first.parent / "gone.ckpt",
        "model": first.parent.parent / "model",
        "up": "../x",
    }.items():
        first.with_name(name).symlink_to(target)
    estimator, folder, said = PyTorch.like("one", resume=True), home.path / "checkpoints" / "one", []
    copy_checkpoints(estimator._copied_checkpoints, folder, said.append)
    links = {str(path.relative_to(folder)): os.readlink(path) for path in folder.rglob("*") if path.is_symlink()}
    assert links == {"last.ckpt": "a.ckpt", "best.ckpt": "a.ckpt", "deep/last.ckpt": "b.ckpt"}
    assert said == [
        "checkpoints: gone is left out: it is a link to nothing",
        f"checkpoints: model is left out: it is a link to {first.parent.parent}/model, outside the folder; "
        "write the file itself into the folder",
        "checkpoints: up is left out: it is a link to ../x, outside the folder; write the file itself into the folder",
    ]


def test_a_copy_of_checkpoints_follows_no_folder_that_became_a_link(home, tmp_path):
    submitted(home)
    checkpoint(home, "one", file="deep/step-1.pt")
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "step-1.pt").write_text("secret")
    estimator = PyTorch.like("one", resume=True)
    deep = home.job("one").host("algo-1") / "checkpoints" / "deep"
    deep.rename(deep.with_name("moved"))
    deep.symlink_to(tmp_path / "secret")
    with pytest.raises(LaunchError, match="cannot be copied"):
        copy_checkpoints(estimator._copied_checkpoints, tmp_path / "copy", pytest.fail)
    assert not (tmp_path / "copy").exists()


def test_a_name_that_is_taken_copies_no_checkpoints(home):
    submitted(home)
    checkpoint(home, "one")
    with pytest.raises(JobNameError, match="job name 'one' is taken"):
        PyTorch.like("one", resume=True).fit(job_name="one")
    assert not (home.path / "checkpoints").exists()


def test_a_plan_refuses_a_name_that_is_taken(home, capsys):
    submitted(home)
    with pytest.raises(JobNameError, match="job name 'one' is taken"):
        PyTorch.like("one").plan(job_name="one")
    assert main(["plan", "--like", "one", "--job-name", "one"]) == 2
    assert "job name 'one' is taken" in capsys.readouterr().err


def test_a_job_with_a_folder_of_its_own_goes_on_in_it(home):
    (home.path.parent / "work" / "kept").mkdir()
    (home.path.parent / "work" / "kept" / "last.pt").touch()
    submitted(home, checkpoint_s3_uri="kept")
    estimator = PyTorch.like("one", resume=True)
    assert estimator.options.checkpoint_s3_uri == f"{home.path.parent}/work/kept"
    assert estimator._copied_checkpoints == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "job one left no checkpoints on this machine"),
        ({"checkpoint_s3_uri": "kept"}, "job one has no checkpoints: its checkpoint_s3_uri, .*/work/kept, has no file"),
        ({"status": "InProgress"}, "job one is not over, and still writes its checkpoints: herringbone stop one"),
    ],
)
def test_a_job_without_checkpoints_cannot_be_resumed(home, options, message):
    submitted(home, **options)
    with pytest.raises(InputError, match=message):
        PyTorch.like("one", resume=True)


def test_checkpoints_on_machines_are_found_by_their_place(home, tmp_path):
    submitted(home)
    machine = {"name": "gpu-1", "work_folder": "/scratch"}
    record = replace(JobIndex(home.index).get("one"), name="two", backend="ssh")
    service = json.dumps({"name": "two.2", "machines": {"algo-1": machine}})
    JobIndex(home.index).add(replace(record, plan=record.plan.replace('"one"', '"two"'), service=service))
    place = "on this machine. .* in gpu-1:/scratch/jobs/two.2/hosts/algo-1/ml/checkpoints; copy them from there"
    with pytest.raises(InputError, match=f"job two left no checkpoints {place}"):
        PyTorch.like("two", resume=True)
    record = JobIndex(home.index).get("two")
    with pytest.raises(InputError, match=f"has written no checkpoint into SM_CHECKPOINT_DIR {place}"):
        fetch_checkpoints(record, home.job("two"), tmp_path / "into")


def test_resume_and_another_folder_for_checkpoints_exclude_each_other(home):
    submitted(home)
    with pytest.raises(OptionError, match="resume takes the folder of the earlier job"):
        PyTorch.like("one", resume=True, checkpoint_s3_uri="other")


def test_the_code_of_the_job_runs_instead_of_the_users(home):
    submitted(home, dependencies=["data"])
    with pytest.raises(InputError, match="job one: its copy of the code is not on this machine"):
        PyTorch.like("one", code_of_job=True)
    code = home.job("one").host("algo-1") / "code"
    code.mkdir(parents=True)
    (code / "train.py").touch()
    source = PyTorch.like("one", code_of_job=True).plan().source
    assert (source.folder, source.entry_point, source.dependencies) == (str(code), "train.py", ())


def test_the_command_line_changes_settings_by_flags(home, capsys):
    submitted(home, hyperparameters={"lr": 0.1}, distribution={"mpi": {"enabled": True, "processes_per_host": 2}})
    words = ["--like", "on", "--processes-per-host", "3", "--input", "test=.", "-o", "max_run=1h", "--job-name", "two"]
    assert main(["plan", *words, "--json", "--", "--lr", "1e-3"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["estimator"], plan["hyperparameters"]["lr"], plan["options"]["max_run"]) == ("PyTorch", '"1e-3"', 3600)
    assert [channel["name"] for channel in plan["channels"]] == ["test", "training"]
    assert plan["hosts"][0]["ranks"] == 3
    checkpoint(home, "one")
    assert main(["plan", "--resume", "-"]) == 0
    assert f"checkpoints:       {home.path}/checkpoints/one" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Missing argument 'job.yaml|script'. Name a script or a job file, or an earlier job with --like NAME"),
        (["t.py", "--code-of-job"], "--code-of-job: goes with --like NAME or --resume NAME"),
        (["t.py", "--like", "one"], "job.yaml|script: t.py next to --like, which takes the script and settings of its"),
        (["--resume", "one", "--like", "one"], "--like: one next to --resume"),
        (["--like", "one", "--framework", "pytorch"], "--framework: --like takes the framework of its job"),
        (["--like", "nosuch"], "no job 'nosuch'"),
        (["--resume", "one"], "job one left no checkpoints on this machine"),
    ],
)
def test_a_wrong_call_is_a_mistake(home, capsys, words, message):
    submitted(home)
    assert main(["plan", *words]) == 2
    assert message in capsys.readouterr().err


def test_an_estimator_of_any_class_can_begin_from_a_job(home):
    submitted(home)
    assert Estimator.like("one").plan().source.entry_point == "train.py"


def test_a_job_of_a_users_class_of_an_earlier_release_runs_again(home, capsys):
    """Its plan has the name of the user's class; the argument `model_dir` is TensorFlow's alone."""
    submitted(home)
    stored = JobIndex(home.index).get("one").plan_dict
    theirs = {**stored, "estimator": "Mine", "arguments": {**stored["arguments"], "model_dir": "/m"}}
    JobIndex(home.index).update("one", plan=json.dumps(theirs))
    assert main(["plan", "--like", "one", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert (planned["estimator"], planned["hyperparameters"]["model_dir"]) == ("TensorFlow", '"/m"')
