"""The controller and the handle, with real processes and the stand-in supervisor."""

import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import msgspec
import pytest
from tests.waiting import wait_until

from herringbone import (
    Estimator,
    InputError,
    JobFailedError,
    JobNameError,
    LaunchError,
    PyTorch,
    TensorFlow,
    TrainingInput,
    TrainingJob,
)
from herringbone.backends.process.backend import ProcessBackend
from herringbone.records.index import JobIndex, JobRecord
from herringbone.system.processes import pid_of


def submit(backend, inputs=None, *, job_name=None, cls=Estimator, **options):
    """Plan and start a job of `train.py`, as `fit(wait=False)` does, but over the test's own backend."""
    options.setdefault("entry_point", "train.py")
    plan = cls(instance_type="local_process", **options).plan(inputs, job_name)
    return TrainingJob.submit(plan, backend)


def texts(job, **filters):
    lines = [line.text for line in job.logs(**filters)]
    # The first host says how its ranks share the cores, if the caller's variables do not.
    return [text for text in lines if not text.startswith("OMP_NUM_THREADS=")]


WAIT_FOR_SIGTERM = """
import signal, sys, time
def leave(*_):
    print("saving", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("ready", flush=True)
time.sleep(60)
"""

IGNORE_SIGTERM = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(60)
"""


def test_a_job_from_submit_to_its_model(script, backend, home):
    script(
        "import os, pathlib; print('hello'); pathlib.Path(os.environ['SM_MODEL_DIR'], os.environ['SM_CURRENT_HOST'])"
        ".write_text('weights'); print('loss=0.5')"
    )
    metrics = [{"Name": "loss", "Regex": "loss=([0-9.]+)"}]
    job = submit(backend, job_name="digits-1", instance_count=2, metric_definitions=metrics).wait()
    assert (job.status, job.secondary_status, job.failure) == ("Completed", "Completed", None)
    assert sorted(texts(job)) == ["hello", "hello", "loss=0.5", "loss=0.5"]
    assert texts(job, host="algo-2") == ["hello", "loss=0.5"]
    assert sorted((metric.host, metric.rank, metric.value) for metric in job.metrics()) == [
        ("algo-1", 0, 0.5),
        ("algo-2", 0, 0.5),
    ]
    assert job.model_data == f"file://{home.path}/jobs/digits-1/output/model.tar.gz"
    with tarfile.open(job.model_data.removeprefix("file://")) as archive:
        assert archive.getnames() == ["algo-1", "algo-2"]
    assert 0 < job.duration < 30
    assert job.started < job.ended
    assert (home.job("digits-1").path / "controller.log").read_text() == ""


def test_the_other_hosts_end_with_a_failing_host(script, home, stand_in):
    script("import os, sys, time\nif os.environ['SM_CURRENT_HOST'] == 'algo-2': sys.exit(3)\ntime.sleep(60)")
    job = submit(ProcessBackend(home, stand_in, patience=0.2), instance_count=2)
    with pytest.raises(JobFailedError, match=r"rank 0 on algo-2: exit code 3") as caught:
        job.follow()
    assert (caught.value.failure.host, caught.value.failure.exit_code) == ("algo-2", 3)
    assert job.status == "Failed"
    assert job.model_data is None


def test_a_killed_supervisor_is_named_with_its_last_lines(script, backend):
    script(
        "import os, signal, time; print('step 3', flush=True); time.sleep(0.2)\n"
        "os.kill(os.getppid(), signal.SIGKILL); time.sleep(60)"
    )
    job = submit(backend).wait()
    assert job.failure.render() == "algo-1: exit code 137, killed by SIGKILL\n  | [algo-1:0] step 3"


def test_orphans_of_an_ended_host_are_killed(script, backend, running):
    """As in a container, all processes end with the first one, also those in a session of their own."""
    script(
        "import subprocess\n"
        "void = subprocess.DEVNULL\n"
        "subprocess.Popen(['sleep', '60'], start_new_session=True, stdout=void, stderr=void)"
    )
    job = submit(backend).wait(timeout=10)
    assert job.status == "Completed"
    assert running() == []


def test_a_supervisor_that_cannot_start_is_reported(script, home):
    script("")
    job = submit(ProcessBackend(home, (sys.executable, "-m", "no_such_supervisor"))).wait()
    assert "algo-1: exit code 1" in job.failure.render()
    assert "No module named no_such_supervisor" in job.failure.render()
    job = submit(ProcessBackend(home, ("/no/such/program",))).wait()
    assert "the job's controller could not go on" in job.failure.render()
    assert "/no/such/program" in job.failure.render()


def test_a_controller_that_cannot_start_is_reported(script, home, stand_in):
    """The controller dies before it has read its config, and nothing may be left of the job."""
    script("")
    # More than a pipe holds: the shell closes its end before all is written.
    dying = ("sh", "-c", "echo no such luck >&2; exec <&-; sleep 1")
    broken = ProcessBackend(home, (*stand_in, "x" * 100_000), controller=dying)
    with pytest.raises(LaunchError, match="the job's controller did not start: no such luck"):
        submit(broken)
    assert JobIndex(home.index).all() == []
    assert list((home.path / "jobs").iterdir()) == []


def test_stop_gives_the_script_its_time(script, backend):
    script(WAIT_FOR_SIGTERM)
    job = submit(backend)
    wait_until(lambda: "ready" in texts(job))
    job.stop()
    job.wait(timeout=10)
    assert (job.status, job.secondary_status, job.failure) == ("Stopped", "Stopped", None)
    assert texts(job) == ["ready", "saving"]
    assert job.model_data is None
    with pytest.raises(InputError, match="is Stopped, and its script saved no model in SM_MODEL_DIR"):
        job.download_model("model")
    job.stop()  # the job is over: nothing happens


def test_a_stop_right_after_the_start_is_a_stop(script, backend):
    """SIGTERM killed a controller that had no handler yet, and the job ended as "Failed: its controller died"."""
    script("import time; time.sleep(60)")
    for _ in range(3):
        job = submit(backend)
        job.stop()
        job.wait(timeout=10)
        assert (job.status, job.failure) == ("Stopped", None)


def test_a_job_whose_client_died_while_it_was_prepared_has_failed(home, backend):
    home.make()
    JobIndex(home.index).add(JobRecord(name="a", backend="local_process", plan="{}", created=1.0, client="1@0"))
    assert "the Python process that was submitting the job died" in TrainingJob("a", backend).failure.render()


def test_stop_with_a_grace_kills_after_it(script, backend):
    script(IGNORE_SIGTERM)
    job = submit(backend)
    wait_until(lambda: "ready" in texts(job))
    start = time.monotonic()
    job.stop(grace=0.3)
    job.wait(timeout=10)
    assert job.status == "Stopped"
    assert 0.3 <= time.monotonic() - start < 5


def test_max_run_stops_the_job(script, backend):
    script(WAIT_FOR_SIGTERM)
    job = submit(backend, max_run=1).wait()
    assert (job.status, job.secondary_status) == ("Stopped", "MaxRuntimeExceeded")
    assert [text for text in texts(job) if "max_run" in text] == ["max_run of 1 s is over: stopping"]
    assert "saving" in texts(job)


def test_a_killed_controller_is_noticed_and_its_hosts_stop(script, backend, home, running):
    script("import time; print('ready', flush=True); time.sleep(60)")
    job = submit(backend)
    wait_until(lambda: "ready" in texts(job))
    os.kill(pid_of(JobIndex(home.index).get(job.name).controller), signal.SIGKILL)
    job.wait(timeout=5)
    assert job.status == "Failed"
    assert "was killed, or its machine restarted: its log is empty" in job.failure.render()
    wait_until(lambda: running() == [])


def test_secrets_reach_the_script_and_nothing_else(script, backend, home, running):
    script("import os, time; print(len(os.environ['API_TOKEN']), os.environ['MODE'], flush=True); time.sleep(0.5)")
    job = submit(backend, environment={"API_TOKEN": "hunter2", "MODE": "fast"}, instance_count=2)
    wait_until(lambda: texts(job) == ["7 fast", "7 fast"])
    assert not [line for line in running() if "hunter2" in line]
    job.wait()
    written = b"".join(path.read_bytes() for path in home.path.rglob("*") if path.is_file())
    assert b"hunter2" not in written
    assert b"fast" in written
    assert job.plan.environment == {"API_TOKEN": "******", "MODE": "fast"}


def test_several_hosts_share_a_secret_and_a_single_host_has_none(script, backend):
    script("import os; print(os.environ['KEY_BYTES'], os.environ.get('HERRINGBONE_CONTROL', '').partition('/')[0])")
    assert texts(submit(backend).wait()) == ["0 "]
    assert texts(submit(backend, instance_count=2).wait()) == ["64 unix:"] * 2


def test_two_jobs_at_once(script, backend):
    script("import sys, time; time.sleep(0.3); print('done')")
    jobs = [submit(backend, job_name=f"job-{number}") for number in (1, 2)]
    assert [job.wait().status for job in jobs] == ["Completed"] * 2
    assert [texts(job) for job in jobs] == [["done"], ["done"]]


def test_a_taken_name_leaves_the_first_job_alone(script, backend, home):
    script("print('first')")
    first = submit(backend, job_name="a").wait()
    script("print('second')")
    with pytest.raises(JobNameError, match="'a' is taken"):
        submit(backend, job_name="a")
    assert texts(first) == ["first"]
    JobIndex(home.index).remove("a")
    with pytest.raises(JobNameError, match=r"its folder .* already exists"):
        submit(backend, job_name="a")
    assert home.job("a").logs.exists()


def test_a_job_that_cannot_be_prepared_leaves_nothing(script, backend, home):
    script("")
    plan = Estimator("train.py", instance_type="local_process").plan(job_name="a")
    (Path.cwd() / "train.py").unlink()  # between plan and submit
    with pytest.raises(LaunchError, match=r"job a could not be prepared in .*/jobs/a: .*No such file"):
        backend.submit(plan)
    assert JobIndex(home.index).all() == []
    assert list((home.path / "jobs").iterdir()) == []


def test_a_job_outlives_the_python_that_submitted_it(script, stand_in):
    script("import time; print('one', flush=True); time.sleep(1); print('two')")
    client = (
        "import os, sys; from herringbone import Estimator;"
        "from herringbone.backends.process.backend import ProcessBackend;"
        "from herringbone.records.home import find_home;"
        f"backend = ProcessBackend(find_home(), {stand_in!r});"
        "backend.submit(Estimator('train.py', instance_type='local_process').plan(job_name='a'));"
        "os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", client], check=False).returncode == -signal.SIGKILL
    job = TrainingJob.attach("a")
    assert job.status == "InProgress"
    assert [line.text for line in job.logs(follow=True)] == ["one", "two"]
    assert job.status == "Completed"


def test_a_module_in_the_users_folder_is_not_taken_for_pythons(script, backend):
    """`python -m` searches the current folder first: a json.py there ended every job before its start."""
    script("raise SystemExit('not this one')", name="json.py")
    script("raise SystemExit('nor this')", name="selectors.py")
    script("print('fine')")
    assert texts(submit(backend).wait()) == ["fine"]


def test_channels_are_linked_shared_and_described(script, backend, home):
    for number in range(3):
        script(str(number), name=f"data/sub/part-{number}")
    script("x", name="one.csv")
    script(
        "import os, pathlib\n"
        "data = pathlib.Path(os.environ['SAGEMAKER_BASE_DIR'], 'input/data')\n"
        "for path in sorted(data.glob('**/*')) + sorted(data.glob('whole/**/*')):\n"
        "    if path.is_file(): print(path.relative_to(data), path.read_text())\n"
    )
    inputs = {"whole": "data", "shard": TrainingInput("data", "ShardedByS3Key"), "file": "one.csv"}
    job = submit(backend, inputs, instance_count=2).wait()
    whole = [f"whole/sub/part-{number} {number}" for number in range(3)]
    assert texts(job, host="algo-1") == ["file/one.csv x", "shard/sub/part-0 0", "shard/sub/part-2 2", *whole]
    assert texts(job, host="algo-2") == ["file/one.csv x", "shard/sub/part-1 1", *whole]
    config = msgspec.json.decode((home.job(job.name).host("algo-1") / "input/config/inputdataconfig.json").read_bytes())
    assert config["shard"] == {
        "TrainingInputMode": "File",
        "S3DistributionType": "ShardedByS3Key",
        "RecordWrapperType": "None",
    }


def test_checkpoints_outlive_the_job_with_checkpoint_s3_uri(script, backend, tmp_path):
    script(
        "import os, pathlib\nfolder = pathlib.Path(os.environ['SAGEMAKER_BASE_DIR'], 'checkpoints')\n"
        "print(sorted(path.name for path in folder.iterdir()))\nstep, last = folder / 'step-1', folder / 'last'\n"
        "step.write_text('')\nlast.is_symlink() or last.symlink_to(step)\n"
    )
    kept = {"checkpoint_s3_uri": f"file://{tmp_path}/ckpt"}
    assert texts(submit(backend, **kept).wait()) == ["[]"]
    assert os.readlink(tmp_path / "ckpt" / "last") == "step-1"  # and no longer a path in the first job's folder
    assert texts(submit(backend, **kept).wait()) == ["['last', 'step-1']"]
    assert texts(submit(backend).wait()) == ["[]"]


def test_output_has_the_paths_of_sagemaker(script, backend, tmp_path):
    script(
        "import os, pathlib\n"
        "base = pathlib.Path(os.environ['SAGEMAKER_BASE_DIR'])\n"
        "(base / 'model/w').write_text('w')\n"
        "(base / 'output/data/plot').write_text('p')\n"
    )
    job = submit(backend, job_name="a", output_path=f"file://{tmp_path}/out").wait()
    assert job.model_data == f"file://{tmp_path}/out/a/output/model.tar.gz"
    assert sorted(path.name for path in (tmp_path / "out/a/output").iterdir()) == ["model.tar.gz", "output.tar.gz"]
    job = submit(backend, job_name="b", output_path=str(tmp_path / "out"), disable_output_compression=True).wait()
    assert (tmp_path / "out/b/output/model/w").read_text() == "w"
    assert job.model_data == f"file://{tmp_path}/out/b/output/model"


def test_tensorflows_model_dir_becomes_a_local_path(script, backend):
    script(
        "import json, os, pathlib\n"
        "base = pathlib.Path(os.environ['SAGEMAKER_BASE_DIR'])\n"
        "hyperparameters = json.loads((base / 'input/config/hyperparameters.json').read_text())\n"
        "print(hyperparameters.get('model_dir', 'none').replace(str(base.parents[2]), ''))\n"
    )
    mpi = {"mpi": {"enabled": True}}
    assert texts(submit(backend, cls=TensorFlow).wait()) == ['"/shared/model"']
    assert texts(submit(backend, cls=TensorFlow, distribution=mpi).wait()) == ['"/hosts/algo-1/ml/model"']
    assert texts(submit(backend, cls=TensorFlow, model_dir=False).wait()) == ["none"]
    assert texts(submit(backend, cls=TensorFlow, model_dir="s3://b/m").wait()) == ['"s3://b/m"']


def test_an_attached_estimator_has_the_same_plan(script, backend, tmp_path, monkeypatch):
    script("")
    arguments = {
        "hyperparameters": {"epochs": 3, "name": "run", "layers": [1, 2]},
        "distribution": {
            "smdistributed": {"modelparallel": {"enabled": True, "parameters": {"partitions": 1, "ddp": True}}},
            "mpi": {"enabled": True, "processes_per_host": 1},
        },
        "environment": {"MODE": "fast"},
        "metric_definitions": [{"Name": "loss", "Regex": "loss=([0-9.]+)"}],
        "instance_count": 2,
        "max_run": 60,
        "tags": [{"Key": "a", "Value": "b"}],
    }
    job = submit(backend, cls=PyTorch, job_name="a", **arguments).wait()
    before = job.plan
    monkeypatch.chdir(tmp_path)
    estimator = PyTorch.attach("a")
    assert estimator.latest_training_job.name == "a"
    assert estimator.model_data == job.model_data
    job.remove()
    after = estimator.plan(job_name="a")
    assert msgspec.structs.replace(after, folder=before.folder) == before
    assert estimator.hyperparameters() == before.hyperparameters


def test_a_description_has_sagemakers_keys(script, backend, home):
    script("print('x')", name="data/x")
    script("import os; open(os.environ['SM_MODEL_DIR'] + '/w', 'w')")
    job = submit(backend, "data", job_name="a", tags=[{"Key": "a", "Value": "b"}], hyperparameters={"epochs": 3}).wait()
    described = job.describe()
    assert described["TrainingJobName"] == "a"
    assert described["TrainingJobStatus"] == described["SecondaryStatus"] == "Completed"
    assert described["HyperParameters"]["epochs"] == "3"
    assert described["ModelArtifacts"] == {"S3ModelArtifacts": job.model_data}
    assert described["ResourceConfig"] == {"InstanceType": "local_process", "InstanceCount": 1}
    assert described["InputDataConfig"] == [
        {
            "ChannelName": "training",
            "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": f"file://{Path.cwd()}/data"}},
        }
    ]
    folder = home.job("a").path
    assert described["OutputDataConfig"] == {"S3OutputPath": f"file://{home.path}/jobs", "CompressionType": "GZIP"}
    assert described["CheckpointConfig"] == {
        "S3Uri": f"file://{folder}/hosts/algo-1/ml/checkpoints",
        "LocalPath": "/opt/ml/checkpoints",
    }
    assert described["Herringbone"] == {"JobFolder": str(folder)}
    assert described["Tags"] == [{"Key": "a", "Value": "b"}]
    assert "FailureReason" not in described


def test_waiting_has_a_timeout(script, backend):
    script(WAIT_FOR_SIGTERM)
    job = submit(backend)
    with pytest.raises(TimeoutError, match=r"is still InProgress after 0.2 s; it goes on"):
        job.wait(timeout=0.2)
    assert job.status == "InProgress"
    job.stop()
    job.wait()
