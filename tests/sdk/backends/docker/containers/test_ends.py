"""Ends of jobs in containers from outside: killed, paused, disconnected, out of memory, without a client."""

import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
from tests.waiting import wait_until

from herringbone import Estimator, InputError, JobFailedError, JobNameError, TrainingJob, UnsupportedError, attach
from herringbone.backends.docker.backend import DockerBackend
from herringbone.backends.listing import all_jobs
from herringbone.cli.__main__ import main
from herringbone.records.index import JobIndex
from herringbone.system.processes import pid_of
from herringbone_contract.errors import EngineError, ImageError

pytestmark = pytest.mark.docker
SLEEP = "import time; print('ready', flush=True); time.sleep(60)"


def ready(job, count=1):
    wait_until(lambda: [line.text for line in job.logs()].count("ready") == count)


def raised_within(job, seconds, match):
    """Check that the job fails with this message within so many seconds."""
    start = time.monotonic()
    with pytest.raises(JobFailedError, match=match):
        job.follow()
    elapsed = time.monotonic() - start
    assert elapsed < seconds, f"{elapsed:.1f} s"


@pytest.mark.parametrize("killed", ["algo-1", "algo-2"])
def test_a_host_that_is_killed_fails_the_job_by_name(submit, engine, killed):
    job = submit(SLEEP, instance_count=2)
    ready(job, 2)
    engine.kill(f"{job.name}-{killed}")
    raised_within(job, 4, rf"{killed}: exit code 137, killed by SIGKILL")


def test_a_single_host_that_is_killed_fails_the_job_by_name(submit, engine):
    job = submit(SLEEP)
    ready(job)
    engine.kill(f"{job.name}-algo-1")
    raised_within(job, 3, r"algo-1: exit code 137, killed by SIGKILL: somebody other than Herringbone stopped")


def test_a_container_that_is_stopped_or_removed_from_outside_says_so(submit, engine):
    """Only "exit code 143, killed by SIGTERM" was all that its user saw."""
    for end in (engine.stop, lambda name: engine.remove_container(name, force=True)):
        job = submit(SLEEP)
        ready(job)
        end(f"{job.name}-algo-1")
        raised_within(job, 5, r"algo-1: exit code 1\d\d, killed by SIG.*: somebody other than Herringbone")
        assert not engine.containers(filters={"name": job.name}, all=True)


@pytest.mark.parametrize("paused", ["algo-1", "algo-2"])
def test_a_paused_host_is_missed(submit, engine, monkeypatch, paused):
    monkeypatch.setenv("HERRINGBONE_HEARTBEAT", "0.3")
    job = submit(SLEEP, instance_count=2)
    ready(job, 2)
    engine.pause(f"{job.name}-{paused}")
    raised_within(job, 15, rf"{paused}: exit code 1: lost contact with {paused}")


def test_the_only_host_is_named_and_woken_when_it_is_paused(submit, engine, monkeypatch):
    """No other host missed it, so its job was InProgress until somebody looked at the engine."""
    monkeypatch.setenv("HERRINGBONE_HEARTBEAT", "0.3")
    # Ready once its supervisor has sent a heartbeat.
    job = submit("import time; time.sleep(0.7); print('ready', flush=True); time.sleep(1)")
    ready(job)
    engine.pause(f"{job.name}-algo-1")
    assert job.wait(timeout=60).status == "Completed"
    assert any(line.text.startswith("stands still: ") for line in job.logs())


@pytest.mark.parametrize("lost", ["algo-1", "algo-2"])
def test_a_host_without_network_is_missed(submit, engine, monkeypatch, lost):
    monkeypatch.setenv("HERRINGBONE_HEARTBEAT", "0.3")
    job = submit(SLEEP, instance_count=2)
    ready(job, 2)
    engine.disconnect_container_from_network(f"{job.name}-{lost}", f"{job.name}-hosts")
    raised_within(job, 15, r"lost contact with algo-\d")


EATS = "data = []\nwhile True: data.append(bytearray(b'x' * (8 << 20)))"


@pytest.mark.parametrize(
    "eats", [EATS, f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {EATS!r}], check=True)"]
)
def test_lack_of_memory_is_named(submit, engine, eats):
    """Also of a child, which the script reports as killed: the container has one limit for all of its processes."""
    job = submit(f"import time; print('ready', flush=True); time.sleep(1)\n{eats}")
    ready(job)
    engine.update_container(f"{job.name}-algo-1", mem_limit=64 << 20, memswap_limit=64 << 20)
    raised_within(
        job,
        10,
        r"out of memory: (.* of the 64 MiB that it may use; lower the batch size|the container may use 64 MiB)",
    )


def test_a_job_outlives_the_python_that_submitted_it(submit, image, script, start_python):
    script("import time; print('one', flush=True); time.sleep(1); print('two')")
    client = start_python(
        "import os, sys; from herringbone import Estimator;"
        "Estimator('train.py', instance_type='local', image_uri=sys.argv[1]).fit(wait=False, job_name='a');"
        "os.kill(os.getpid(), 9)",
        image,
    )
    assert client.wait(timeout=30) == -signal.SIGKILL
    job = attach("a")
    assert [line.text for line in job.logs(follow=True)] == ["one", "two"]
    assert job.status == "Completed"


def test_ctrl_c_stops_the_job_and_reaches_the_caller(image, script, start_python):
    script(SLEEP)
    client = start_python(
        "import sys; from herringbone import Estimator\n"
        "try: Estimator('train.py', instance_type='local', image_uri=sys.argv[1]).fit(job_name='a')\n"
        "except KeyboardInterrupt: sys.exit(7)",
        image,
        stderr=subprocess.PIPE,
    )
    assert client.stdout.readline() == "[algo-1:0] ready\n"
    client.send_signal(signal.SIGINT)
    client.communicate(timeout=20)
    assert client.returncode == 7
    assert attach("a").status == "Stopped"


@pytest.mark.parametrize("delay", [0.02, 0.08, 0.16, 0.3, 0.5])
def test_ctrl_c_finds_the_job_at_any_moment_of_its_start(image, script, start_python, delay):
    script("import time; time.sleep(60)")
    client = start_python(
        "import sys, herringbone.backends.docker.backend, herringbone.api.job; from herringbone import Estimator\n"
        "estimator = Estimator('train.py', instance_type='local', instance_count=2, image_uri=sys.argv[1])\n"
        "print('ready', flush=True)\n"
        "try: estimator.fit(job_name='a')\n"
        "except KeyboardInterrupt: sys.exit(7)",
        image,
        stderr=subprocess.PIPE,
    )
    assert client.stdout.readline() == "ready\n"
    time.sleep(delay)
    client.send_signal(signal.SIGINT)
    client.communicate(timeout=20)
    assert client.returncode == 7
    assert [record.status for record in all_jobs()] in ([], ["Stopped"])


def test_a_killed_controller_is_noticed_and_its_containers_are_removed(submit, home, of_home, capsys):
    jobs = [submit(SLEEP, instance_count=2) for _ in range(2)]
    for job in jobs:
        ready(job, 2)
        os.kill(pid_of(JobIndex(home.index).get(job.name).controller), signal.SIGKILL)
    assert "the process that watched the job was killed" in jobs[0].wait(timeout=10).failure.message
    # Reading the first job removes its containers; the command, or the next job, removes the second one's.
    assert [name for name in of_home() if name.startswith(jobs[0].name)] == []
    assert main(["clean"]) == 0
    assert of_home() == []


def test_twenty_jobs_of_four_pythons_are_not_mixed_up(image, script, start_python):
    script("import os; print('I am', os.environ['TRAINING_JOB_NAME'], os.environ['MODE'])")
    client = (
        "import sys; from herringbone import Estimator\n"
        "names = [f'job-{sys.argv[2]}-{number}' for number in range(5)]\n"
        "jobs = [Estimator('train.py', instance_type='local', image_uri=sys.argv[1], environment={'MODE': name})"
        ".fit(wait=False, job_name=name) for name in names]\n"
        "for job in jobs: print(job.name, job.wait(timeout=90).status, [line.text for line in job.logs()])"
    )
    clients = [start_python(client, image, str(number)) for number in range(4)]
    output = "".join(client.communicate(timeout=110)[0] for client in clients).splitlines()
    names = [f"job-{number}-{job}" for number in range(4) for job in range(5)]
    assert output == [f"{name} Completed ['I am {name} {name}']" for name in names]


def test_an_engine_that_goes_away_ends_the_job_by_name(submit, by_tcp, engine):
    """The connections to the engine break, and the containers stop by themselves because their lifelines end."""
    job = submit(SLEEP)
    ready(job)
    by_tcp.cut()
    with pytest.raises(JobFailedError, match=r"algo-1: .*the container engine went away while the job ran"):
        job.follow()
    wait_until(lambda: not engine.inspect_container(f"{job.name}-algo-1")["State"]["Running"])
    engine.remove_container(f"{job.name}-algo-1")


def test_a_usage_error_starts_nothing(script, image, home, monkeypatch, derived, engine):
    script("print(1)")

    def fit(**options):
        return Estimator("train.py", **{"instance_type": "local", "image_uri": image, **options}).fit(job_name="a")

    with pytest.raises(ImageError, match="the engine has no image 'no-such-image:1'"):
        fit(image_uri="no-such-image:1")
    with pytest.raises(
        ImageError, match=r"algo-\d: the image has no program to start .*an image needs a program `train`"
    ):
        fit(image_uri=derived("ENV PATH=/nowhere"), instance_count=2)
    with pytest.raises(InputError, match="gone: no such folder"):
        fit(source_dir="gone")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(UnsupportedError, match="2 hosts with at least one GPU each, and this machine has 0"):
        fit(instance_type="local_gpu", instance_count=2)
    other = engine.create_container(image, ["true"], name="a-algo-1")["Id"]
    try:
        with pytest.raises(JobNameError, match="the engine already has 'a-algo-1'"):
            fit()
    finally:
        engine.remove_container(other)
    monkeypatch.setenv("DOCKER_HOST", "unix:///no/such/engine")
    with pytest.raises(EngineError, match=r"(?s)no container engine answers\. Tried:\n  DOCKER_HOST: unix:///no/such"):
        fit()
    assert JobIndex(home.index).all() == []
    assert not (home.path / "jobs").exists() or list((home.path / "jobs").iterdir()) == []


def test_containers_run_as_the_submitting_user(image, home, script, by_tcp):
    """Also on a remote engine, to which the files were copied."""
    script(
        "import os, pathlib\n"
        "print(os.getuid(), os.getgid(), pathlib.Path('/opt/ml/code/train.py').stat().st_uid, os.environ['HOME'])\n"
        "pathlib.Path('/opt/ml/model/w').write_text('')"
    )
    backend = DockerBackend(home, _engine, user=(4321, 4322))
    plan = Estimator("train.py", instance_type="local", image_uri=image).plan(job_name="a")
    job = TrainingJob.submit(plan, backend).wait()
    assert [line.text for line in job.logs()] == ["4321 4322 4321 /tmp"]
    assert {path.lstat().st_uid for path in home.path.rglob("*")} == {os.getuid()}


def test_a_client_that_dies_before_the_config_is_written_leaves_nothing(script, image, home, engine, of_home):
    """The controller ends without a config, and so do the containers."""
    script(SLEEP)

    class Dying(DockerBackend):
        def _hand_over(self, controller, config):
            os._exit(9)

    child = os.fork()
    if child == 0:
        try:
            backend = Dying(home, _engine)
            estimator = Estimator("train.py", instance_type="local", image_uri=image)
            backend.submit(estimator.plan(job_name="a"))
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    wait_until(lambda: attach("a").status == "Failed")
    assert of_home() == []


def _engine():
    from herringbone.engine.locate import find_engine

    return find_engine(os.environ, Path.home())


def test_threads_can_submit_in_parallel(image, script):
    script("print('done')")
    statuses = []

    def fit():
        statuses.append(Estimator("train.py", instance_type="local", image_uri=image).fit(logs=False).status)

    threads = [threading.Thread(target=fit) for _ in range(3)]
    for thread in threads:
        thread.start()
        time.sleep(0.01)
    for thread in threads:
        thread.join(60)
    assert statuses == ["Completed"] * 3


def test_a_killed_host_is_restarted_with_its_checkpoints(submit, engine):
    job = submit(
        "import os, pathlib, time\n"
        "saved = pathlib.Path('/opt/ml/checkpoints', os.environ['SM_CURRENT_HOST'])\n"
        "if saved.exists():\n"
        "    pathlib.Path('/opt/ml/model', os.environ['SM_CURRENT_HOST']).write_text(os.environ['TOKEN'])\n"
        "else:\n"
        "    saved.touch(); print('ready', flush=True); time.sleep(60)",
        instance_count=2,
        environment={"TOKEN": "sent again in private"},
        max_retry_attempts=1,
    )
    ready(job, 2)
    engine.kill(f"{job.name}-algo-2")
    assert job.wait(timeout=30).status == "Completed"
    messages = [line.text for line in job.logs() if line.rank is None]
    assert any(text.startswith("attempt 2 of 2: algo-2 was lost (exit code 137") for text in messages)
    folder = job.download_model("model")
    assert [path.read_text() for path in sorted(folder.iterdir())] == ["sent again in private"] * 2


def test_a_job_goes_on_in_other_numbers_of_containers(submit):
    job = submit(
        "import json, pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
        "hosts = json.loads(pathlib.Path('/opt/ml/input/config/resourceconfig.json').read_text())['hosts']\n"
        "print('among', len(hosts), flush=True)\n"
        "if pathlib.Path('/opt/ml/checkpoints/end').exists(): sys.exit(0)\n"
        "if len(hosts) == 1: pathlib.Path('/opt/ml/checkpoints/end').touch()\n"
        "time.sleep(60)",
        instance_count=2,
        min_instance_count=1,
    )

    def begun():
        return sum(line.text.startswith("among") for line in job.logs())

    for count, hosts in ((2, 1), (3, 2)):
        wait_until(lambda count=count: begun() == count)
        job.scale(hosts)
    assert job.wait(timeout=30).status == "Completed"
    assert [line.text for line in job.logs(rank=0)] == ["among 2", "among 1", "among 2"]


@pytest.mark.parametrize("option", ["max_retry_attempts", "min_instance_count"])
def test_restarts_on_a_remote_engine_are_refused(submit, by_tcp, option):
    with pytest.raises(UnsupportedError, match=f"{option}: the checkpoints of a host are in its container"):
        submit(SLEEP, **{option: 1})
