"""Jobs that share machines, and wait in the lines of several of them; tests/sdk/slots/test_line.py tests the order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from herringbone import Estimator, TrainingJob
from herringbone.backends.facts import find_facts
from herringbone.records.home import Home
from herringbone.records.index import JobIndex
from herringbone.slots.places import place_texts
from herringbone.system.processes import pid_of

pytestmark = [pytest.mark.ssh, pytest.mark.timeout(400)]
HOLD = "import os, time; print('has', os.environ.get('CUDA_VISIBLE_DEVICES'), flush=True); time.sleep(600)"
PROGRAM = """
import sys
from herringbone.cli.__main__ import main
sys.exit(main())
"""
SHOW = "import os; print('has', os.environ.get('CUDA_VISIBLE_DEVICES'), flush=True)"


@pytest.fixture
def fit(machines, home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., TrainingJob]]:
    """A function that submits a script by `fit` to machines with two GPUs each; all jobs are over at the end."""
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {machines.config} -o ControlPath=none "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("HERRINGBONE_REPORT", "off")
    jobs = []

    def start(
        name: str,
        script: str = HOLD,
        *,
        hosts: int = 1,
        of: int = 3,
        queue: bool = True,
        shares: int = 0,
        **options: Any,
    ):
        content = machines.inventory(**({"cpu_shares": shares} if shares else {}))
        Path("hosts.yaml").write_text(yaml.safe_dump({**content, "hosts": content["hosts"][:of]}))
        Path("train.py").write_text(script)
        estimator = Estimator("train.py", instance_type="ssh:hosts.yaml", instance_count=hosts, **options)
        jobs.append(estimator.fit(wait=False, logs=False, job_name=name, queue=queue))
        return jobs[-1]

    with machines.gpus(2):
        yield start
        for job in jobs:
            job.stop()
        for job in jobs:
            job.wait(logs=False) if not job._backend.describe(job.name).done else None


def text(home: Home, job: TrainingJob, *parts: str, seconds: float = 90) -> str:
    """Return the place of a job once its text has these parts."""
    deadline = time.monotonic() + seconds
    while True:
        record = JobIndex(home.index).get(job.name)
        place = place_texts(home, [record]).get(job.name, "")
        if all(part in place for part in parts):
            return place
        assert time.monotonic() < deadline, (place, record.status, record.failure)
        time.sleep(0.1)


def state(job: TrainingJob) -> str:
    return str(job._backend.describe(job.name).secondary_status)


def await_state(job: TrainingJob, wanted: str, seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while state(job) != wanted:
        assert time.monotonic() < deadline, (state(job), job._backend.home.job(job.name).controller_words())
        time.sleep(0.1)


def test_jobs_share_a_machine_and_wait_for_the_rest(fit, home):
    one, two = fit("one", of=1, gpus=1), fit("two", of=1, gpus=1)
    assert [state(one), state(two)] == ["Training", "Training"]
    with pytest.raises(Exception, match=r"(?s)h-1: runs one of root; runs two of root.*queue=True"):
        fit("refused", of=1, gpus=1, queue=False)
    last = fit("last", SHOW, of=1, gpus=1)
    small = fit("small", SHOW, of=1, gpus=1, priority=1)
    assert text(home, small, "waits for one") == "1st in line, waits for one (root), two (root), on h-1"
    text(home, last, "2nd in line")
    assert find_facts(JobIndex(home.index).get("last"), last._backend)["Queue"]["Place"] == 2
    # The log of a job that still waits becomes that of the job.
    lines = last.logs(follow=True)
    two.stop()
    assert [line.text for line in lines] == ["has GPU-1"]
    assert [job.wait(logs=False).status for job in (small, last)] == ["Completed", "Completed"]
    started = {job: JobIndex(home.index).get(job).started for job in ("small", "last")}
    assert started["small"] < started["last"]
    assert state(one) == "Training"


def test_a_job_takes_all_of_its_machines_or_none(fit, home):
    holder = fit("holder", of=1, gpus=2)
    wide = fit("wide", SHOW, of=2, hosts=2, gpus=2)
    text(home, wide, "waits for holder", "on h-1")
    # What the wide job keeps on h-2 is not for one that came later; what it does not need is.
    later = fit("later", SHOW, of=2, gpus=1)
    text(home, later, "in line")
    holder.stop()
    assert [job.wait(logs=False).status for job in (wide, later)] == ["Completed", "Completed"]
    assert JobIndex(home.index).get("wide").started < JobIndex(home.index).get("later").started


def test_a_waiting_job_leaves_or_is_lost_and_the_next_one_starts(fit, home, machines):
    holder = fit("whole", of=1)
    gone, killed, late = (fit(name, SHOW, of=1, gpus=2) for name in ("gone", "killed", "late"))
    brief = fit("brief", SHOW, of=1, max_wait=1)
    text(home, late, "3rd in line")
    # The connections of all waiters break; they come back to their places.
    machines.kill_sessions("h-1")
    gone.stop()
    await_state(gone, "Stopped")
    os.kill(pid_of(JobIndex(home.index).get("killed").client), signal.SIGKILL)
    assert "place in line was killed" in str(killed.wait(logs=False).failure)
    await_state(brief, "MaxWaitTimeExceeded")
    text(home, late, "1st in line", "whole")
    (machines.folder / "h-1" / "bin" / "used").write_text("GPU-1, 4711, 9000\n")
    holder.stop()
    text(home, late, "process 4711 on GPU-1, outside Herringbone")
    (machines.folder / "h-1" / "bin" / "used").unlink()
    assert late.wait(logs=False).status == "Completed"


def test_jobs_without_gpus_share_a_machine_and_ctrl_c_leaves_its_line(fit, home):
    one, two = (fit(name, of=1, shares=2) for name in ("share-1", "share-2"))
    assert [state(one), state(two)] == ["Training", "Training"]
    run = ["run", "train.py", "--job-name", "typed", "--queue", "--instance-type", "ssh:hosts.yaml"]
    typed = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *run],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    shown = iter(typed.stdout)
    assert any("1st in line, waits for share-1 (root), share-2 (root), on h-1" in line for line in shown)
    last = fit("share-3", SHOW, of=1, shares=2)
    text(home, last, "2nd in line")
    typed.send_signal(signal.SIGINT)
    typed.communicate(timeout=60)
    assert JobIndex(home.index).get("typed").status == "Stopped"
    one.stop()
    assert last.wait(logs=False).status == "Completed"
    # A job without GPUs sees none.
    assert [line.text for line in last.logs()] == ["has "]
