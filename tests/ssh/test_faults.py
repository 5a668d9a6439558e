"""Tests of faults on three machines: the failure that the user sees, how soon, and that no process remains.

Each test prints a row for the table in docs/do/ssh.md.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from herringbone import TrainingJob
from herringbone.backends.ssh.backend import SshBackend
from herringbone.records.index import JobIndex

from .conftest import await_silence, expect
from .test_jobs import WAIT

pytestmark = pytest.mark.ssh

# The promise is 5 s, plus three heartbeats (1 s each here) for a silent machine. The rest is for a busy machine.
REPORT_SECONDS = 40.0
ENDLESS = "import time\nprint('waits', flush=True)\nwhile True: time.sleep(0.1)"


@contextlib.contextmanager
def reported(job, fault):
    """The body breaks something; assert that the job then ends soon, and print how soon."""
    expect(job, "waits", "waits", "waits")
    started = time.monotonic()
    yield
    job.wait()
    seconds = time.monotonic() - started
    failure = job.failure.render().splitlines()[0] if job.failure else ""
    print(f"fault: {fault} | {job.status} | {failure} | {seconds:.1f} s")
    assert seconds < REPORT_SECONDS


def kill(machines, name, text):
    pids = machines.pids(name, text)
    assert pids, text
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        ("herringbone_entry.ranks.rank", "rank 2 on algo-3: exit code 137, killed by SIGKILL"),
        ("-m herringbone_entry", "algo-3: exit code 137, killed by SIGKILL"),
        ("-m herringbone.controller", "the process that watched the job was killed"),
    ],
)
def test_a_killed_process_ends_the_job_and_is_named(submit, machines, text, failure):
    job = submit(WAIT)
    with reported(job, f"kill -9 of `{text}`"):
        kill(machines, "h-3", text)
    assert failure in job.failure.render()


def test_a_cut_link_is_noticed_on_both_sides(submit, machines):
    job = submit(WAIT)
    try:
        with reported(job, "a link cut"):
            machines.cut("h-3")
        assert "algo-3" in job.failure.render()
        # The host beyond the cut ends by itself.
        assert await_silence(machines, "h-3") == []
    finally:
        machines.reconnect("h-3")


def test_a_frozen_machine_is_lost_and_ends_its_host_when_it_thaws(submit, machines):
    job = submit(WAIT)
    try:
        with reported(job, "a machine frozen"):
            machines.freeze("h-3")
        assert "algo-3" in job.failure.render()
    finally:
        machines.thaw("h-3")


def test_a_controller_that_stood_still_makes_no_stop_of_a_job_that_ended_well(submit, machines):
    job = submit("import time\nprint('waits', flush=True)\ntime.sleep(3)", hosts=2)
    expect(job, "waits", "waits")
    (controller,) = machines.pids("h-2", "-m herringbone.controller")
    os.kill(controller, signal.SIGSTOP)
    # The client has the machine end the host that outlives the others.
    assert job.wait().status == "Completed"


def test_the_only_controller_that_stands_still_is_named_in_the_log(submit, machines):
    """No other host outlived it, and nothing of the job moved any more."""
    job = submit(WAIT, hosts=1)
    expect(job, "waits")
    ((name, controller),) = (
        (name, pid) for name in machines.names for pid in machines.pids(name, "herringbone.controller")
    )
    os.kill(controller, signal.SIGSTOP)
    expect(job, f"waiting for {name}: job {job.name} stands still: somebody has stopped its controller")
    job.stop()
    assert job.wait().status == "Stopped"


def test_killed_connections_are_opened_again_without_losing_a_line(submit, machines):
    job = submit("import time\nfor n in range(40): print('line', n, flush=True); time.sleep(0.1)")
    lines = job.logs(follow=True)
    received = [next(lines)]
    for name in machines.names:
        machines.kill_sessions(name)
    received += lines
    assert job.status == "Completed"
    numbered = [line.text for line in received if line.rank == 1]
    assert numbered == [f"line {number}" for number in range(40)]


def test_a_killed_client_leaves_the_job_running(machines, home, backend, transport, tmp_path):
    Path("hosts.yaml").write_text(yaml.safe_dump(machines.inventory()))
    Path("train.py").write_text(ENDLESS)
    wrapper = tmp_path / "bin" / "ssh"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {machines.config} -o ControlPath=none "$@"\n')
    wrapper.chmod(0o755)
    code = (
        "from herringbone import Estimator; "
        "Estimator('train.py', instance_type='ssh:hosts.yaml', instance_count=3).fit(job_name='orphan')"
    )
    environment = {**os.environ, "PATH": f"{wrapper.parent}:{os.environ['PATH']}"}
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True) as client:
        count = 0
        for line in client.stdout:
            count += "waits" in line
            if count == 3:
                break
        client.kill()
    job = TrainingJob("orphan", SshBackend(home, transport))
    time.sleep(1.0)
    assert job.status == "InProgress"
    job.stop()
    assert job.wait().status == "Stopped"


def test_a_full_disk_fails_the_job_and_is_named(submit, machines, home):
    jobs = machines.work("h-3") / "jobs"
    jobs.mkdir(parents=True, exist_ok=True)
    inside = ["nsenter", "-t", str(machines.first_process("h-3")), "-m"]
    subprocess.run([*inside, "mount", "-t", "tmpfs", "-o", "size=4m", "none", str(jobs)], check=True)
    try:
        job = submit(
            "import os\nprint('waits', flush=True)\nif os.environ['RANK'] == '2':\n"
            "    with open(os.environ['SM_MODEL_DIR'] + '/big', 'wb') as f:\n"
            "        while True: f.write(bytes(1 << 20)); f.flush()\n"
            "import time; time.sleep(600)"
        )
        with reported(job, "a disk full"):
            pass
        assert job.failure.render().startswith("rank 2 on algo-3: OSError: [Errno 28] No space left on device")
        assert await_silence(machines, "h-3") == []
    finally:
        # A process of the job may hold the disk for a moment longer.
        deadline = time.monotonic() + 20.0
        while subprocess.run([*inside, "umount", str(jobs)], check=time.monotonic() > deadline).returncode:
            time.sleep(0.2)
        # The folders of h-3's jobs were on that disk. Remove their rows, which later tests would otherwise see.
        for record in JobIndex(machines.work("h-3") / "index.sqlite").all():
            JobIndex(machines.work("h-3") / "index.sqlite").remove(record.name)
