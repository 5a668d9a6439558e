"""A controller that is paused, or that lives in another PID namespace than the client."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.sdk.controller.test_controller import IGNORE_SIGTERM, WAIT_FOR_SIGTERM, texts
from tests.waiting import wait_until

from herringbone import Estimator, TrainingJob
from herringbone.backends.listing import all_jobs
from herringbone.backends.process.backend import make_backend
from herringbone.records.index import JobIndex
from herringbone.records.standstill import standstill
from herringbone.system.processes import pid_of


def submit(backend):
    """Start a job of `train.py`, and return it when its script is ready."""
    job = TrainingJob.submit(Estimator("train.py", instance_type="local_process").plan(), backend)
    wait_until(lambda: texts(job) == ["ready"])
    return job


def test_a_look_from_another_pid_namespace_changes_nothing(script, backend, home):
    """As from a container or a second machine with the same home, where no process of the job can be seen."""
    apart = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*apart, "true"], capture_output=True).returncode:
        pytest.skip("this system allows no PID namespaces")
    script(WAIT_FOR_SIGTERM)
    job = submit(backend)
    row = JobIndex(home.index).get(job.name)
    look = [*apart, sys.executable, "-m", "herringbone.cli"]
    listed, stopped = (
        subprocess.run([*look, *verb], capture_output=True, text=True) for verb in (["ls"], ["stop", job.name])
    )
    assert "InProgress/Training" in listed.stdout
    assert "another machine or container" in listed.stderr
    assert (stopped.returncode, "stop it there" in stopped.stderr) == (1, True)
    assert JobIndex(home.index).get(job.name) == row
    assert Path(str(row.run_folder)).is_dir()
    job.stop()
    assert job.wait(timeout=10).status == "Stopped"


@pytest.mark.parametrize("paused", ["controller", "supervisor"])
def test_a_stop_reaches_a_process_that_is_paused(script, backend, home, paused):
    """SIGTERM waits in a process that SIGSTOP has paused: `stop` returned 0, and nothing happened."""
    script(WAIT_FOR_SIGTERM)
    job = submit(backend)
    controller = pid_of(str(JobIndex(home.index).get(job.name).controller))
    children = Path(f"/proc/{controller}/task/{controller}/children").read_text().split()
    os.kill(controller if paused == "controller" else int(children[0]), signal.SIGSTOP)
    job.stop()
    assert job.wait(timeout=10).status == "Stopped"
    assert texts(job) == ["ready", "saving"]


def test_a_supervisor_that_stands_still_is_named_and_woken(script, home, monkeypatch):
    """The ranks ended, nobody heard of it, and the job was InProgress until somebody stopped it."""
    monkeypatch.setenv("HERRINGBONE_HEARTBEAT", "0.2")
    # The real supervisor, which has sent heartbeats by the time that it is stopped.
    script("import os, signal, time\ntime.sleep(0.5)\nos.kill(os.getppid(), signal.SIGSTOP)")
    job = TrainingJob.submit(Estimator("train.py", instance_type="local_process").plan(), make_backend())
    assert job.wait(timeout=60).status == "Completed"
    said = [line.text for line in job.logs() if line.rank is None]
    heads = [text.partition(": ")[0] for text in said if "stands still" in text]
    assert heads == ["stands still", "still stands still"]
    assert "is heard again" in said


def test_a_controller_that_stands_still_is_named_by_whoever_looks(script, backend, home, capsys):
    script(WAIT_FOR_SIGTERM)
    job = submit(backend)
    controller = pid_of(str(JobIndex(home.index).get(job.name).controller))
    assert standstill(backend.describe(job.name), home) is None
    os.kill(controller, signal.SIGSTOP)
    wait_until(lambda: standstill(backend.describe(job.name), home) is not None)
    with pytest.raises(TimeoutError):
        job.wait(timeout=0.1)
    assert f"`kill -CONT {controller}` lets it go on" in capsys.readouterr().err
    said = []
    all_jobs(said.append)
    assert f"{job.name} stands still" in said[0]
    job.stop()
    assert job.wait(timeout=10).status == "Stopped"


@pytest.mark.parametrize("who", ["rank 0", "the process that finds metrics in the log"])
def test_a_stopped_process_is_named_until_it_goes_on(script, home, monkeypatch, who):
    monkeypatch.setenv("HERRINGBONE_HEARTBEAT", "0.2")
    script("import os, time\nprint('ready', os.getpid(), flush=True)\ntime.sleep(600)")
    definitions = [{"Name": "x", "Regex": "x=(.)"}]
    estimator = Estimator("train.py", instance_type="local_process", metric_definitions=definitions)
    job = TrainingJob.submit(estimator.plan(), backend := make_backend())
    wait_until(lambda: any(line.text.startswith("ready") for line in job.logs()))
    pid = int(next(line.text for line in job.logs() if line.text.startswith("ready")).split()[1])
    if who != "rank 0":
        controller = pid_of(str(JobIndex(home.index).get(job.name).controller))
        children = Path(f"/proc/{controller}/task/{controller}/children").read_text().split()
        (pid,) = (int(child) for child in children if "from_log" in Path(f"/proc/{child}/cmdline").read_text())
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: standstill(backend.describe(job.name), home) is not None)
    words = f"{who} (process {pid}) is stopped; `kill -CONT {pid}`"
    assert words in job.describe()["Herringbone"]["Standstill"]
    assert any(words in line.text for line in job.logs())
    os.kill(pid, signal.SIGCONT)
    wait_until(lambda: standstill(backend.describe(job.name), home) is None)
    os.kill(pid, signal.SIGSTOP)
    job.stop(grace=1.0)
    assert job.wait(timeout=10).status == "Stopped"


def test_a_kill_reaches_a_controller_that_is_paused(script, backend, home):
    script(IGNORE_SIGTERM)
    job = submit(backend)
    os.kill(pid_of(str(JobIndex(home.index).get(job.name).controller)), signal.SIGSTOP)
    backend.kill(job.name)
    assert job.status == "Stopped"
