"""Jobs that wait in line: real waiters and controllers, two GPUs of a program in the place of nvidia-smi."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from herringbone import Estimator
from herringbone.api.job import TrainingJob
from herringbone.records.index import JobIndex
from herringbone.slots.claim import Line
from herringbone.slots.folder import SlotsFolder
from herringbone.slots.places import place_texts
from herringbone.slots.probe import NvidiaSmi
from herringbone.slots.ticket import Wants
from herringbone.system.processes import pid_of
from herringbone.views.page.live import LiveJob
from herringbone.views.page.summaries import Summaries
from herringbone.views.tunings.looks import Tunings
from herringbone_contract.errors import LaunchError, UnsupportedError

SCRIPT = "import os\nprint('on', os.environ['CUDA_VISIBLE_DEVICES'], 'version 1')\n"


@pytest.fixture
def machine(home, tmp_path, monkeypatch, script):
    """A machine with two GPUs, whose jobs run under the stand-in supervisor."""
    folder = tmp_path / "bin"
    folder.mkdir()
    lines = "".join(f"echo 'GPU {number}: A (UUID: GPU-{number})'\n" for number in range(2))
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\n[ $1 = -L ] || exit 0\n{lines}")
    (folder / "nvidia-smi").chmod(0o755)
    entry = tmp_path / "fake" / "herringbone_entry"
    entry.mkdir(parents=True)
    (entry / "__init__.py").touch()
    shutil.copy(Path(__file__).parents[1] / "stand_in.py", entry / "__main__.py")
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(entry.parent), os.environ.get("PYTHONPATH")))))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    script(SCRIPT)
    return Line(SlotsFolder(os.environ["HERRINGBONE_SLOTS"]), NvidiaSmi(), {})


@pytest.fixture
def holder(machine):
    """Another job, which has both GPUs."""
    claim = machine.enter("other", home="/elsewhere", wants=Wants(gpus=2))
    claim.advance()
    yield claim
    claim.leave()
    claim.close()


def fit(*, queue=True, **options):
    name = options.pop("job_name", "a")
    estimator = Estimator("train.py", instance_type="local_process", **{"gpus": 1, **options})
    return estimator.fit(wait=False, logs=False, queue=queue, job_name=name)


def until(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_job_waits_and_then_trains_the_code_as_it_was(machine, holder, herringbone, home):
    job = fit()
    assert (job.status, job.secondary_status) == ("InProgress", "Pending")
    user = holder.ticket.user
    _, out, _ = herringbone("ls")
    place = f"1st in line, waits for other ({user})"
    assert f"InProgress/Pending: {place}" in out
    _, out, _ = herringbone("top", "--once")
    assert [line.rstrip().endswith(f"  {place}") for line in out.splitlines() if line.startswith("a ")] == [True]
    with closing(Summaries(home, Tunings(home))) as summaries, closing(LiveJob("a")) as shown:
        shown.look()
        assert (summaries.lines()[0]["why"], shown.data()["why"]) == (place, place)
    (holder_shown,) = job.describe()["Herringbone"]["Queue"]["WaitsFor"]
    assert (holder_shown["Job"], holder_shown["User"]) == ("other", user)
    Path("train.py").write_text("print('version 2')\n")
    holder.leave()
    job.wait(timeout=60)
    assert [line.text for line in job.logs()] == ["on GPU-0 version 1"]
    slots = job.describe()["Herringbone"]["Slots"]
    assert slots["Devices"] == ["GPU-0"]
    assert slots["Arrival"] < slots["Granted"]
    for reader in [thread for thread in threading.enumerate() if thread.name == "a"]:
        # `top` closes what it has opened once the job is over.
        reader.join(20)
    assert [event["state"] for event in job.events() if event["kind"] == "state"][:2] == ["Pending", "Starting"]
    assert machine.folder.read().tickets == ()


def test_a_free_gpu_needs_no_waiter(machine):
    job = fit(queue=True)
    assert job.secondary_status != "Pending"
    assert job.wait(timeout=60).status == "Completed"
    # Free before the row said that the job is over.
    assert fit(queue=False, gpus=2, job_name="b").wait(timeout=60).status == "Completed"


def test_without_queue_a_job_is_refused_and_leaves_nothing(machine, holder, home):
    with pytest.raises(
        LaunchError, match=r"needs 1 GPU of this machine, .* job other of .* has GPU-0, GPU-1\. .*--queue"
    ):
        fit(queue=False)
    assert JobIndex(home.index).names() == []
    assert not home.job("a").path.exists()
    assert [ticket.job for ticket in machine.folder.read().tickets] == ["other"]


@pytest.mark.parametrize("options", [{"gpus": 3}, {"instance_count": 3}])
def test_what_the_machine_does_not_have_is_refused_at_plan(machine, options):
    with pytest.raises(UnsupportedError, match="needs 3 GPUs, and this machine has 2"):
        Estimator("train.py", instance_type="local_process", **{"gpus": 1, **options}).plan()


def test_cuda_visible_devices_limits_a_job(machine, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    job = fit(queue=False).wait(timeout=60)
    assert [line.text for line in job.logs()] == ["on GPU-1 version 1"]
    with pytest.raises(UnsupportedError, match=r"needs 2 GPUs, and this machine has 1 for it \(CUDA_VISIBLE_DEVICES\)"):
        fit(gpus=2, job_name="b")


def test_each_host_sees_its_own_gpus(machine):
    job = fit(instance_count=2).wait(timeout=60)
    assert sorted(line.text for line in job.logs()) == ["on GPU-0 version 1", "on GPU-1 version 1"]


@pytest.mark.parametrize("verb", ["stop", "kill"])
def test_a_job_that_is_stopped_leaves_the_line(machine, holder, running, verb):
    job = fit()
    if verb == "stop":
        job.stop()
    else:
        job._backend.kill(job.name)
    assert (job.wait(timeout=60).status, job.secondary_status) == ("Stopped", "Stopped")
    assert [ticket.job for ticket in machine.folder.read().tickets] == ["other"]
    until(lambda: running() == [])


def test_a_job_whose_waiter_is_killed_fails_and_costs_nobody_a_place(machine, holder, home):
    job, later = fit(), fit(job_name="b")
    os.kill(pid_of(JobIndex(home.index).get("a").client), signal.SIGKILL)
    until(lambda: job.status == "Failed")
    assert job.failure.message.startswith("the process that held the job's place in line was killed")
    holder.leave()
    assert later.wait(timeout=60).status == "Completed"


def test_a_waiter_that_is_stopped_is_named_to_its_job_and_to_those_behind_it(machine, holder, home):
    job, later = fit(), fit(job_name="b")
    until(lambda: all(ticket.waiter for ticket in machine.folder.read().tickets if ticket.waits))
    pid = pid_of(JobIndex(home.index).get("a").client)

    def texts():
        return place_texts(home, [JobIndex(home.index).get(name) for name in ("a", "b")])

    os.kill(pid, signal.SIGSTOP)
    until(lambda: "somebody has stopped the process that holds its place" in texts()["a"])
    holder.leave()
    assert texts()["b"].startswith("2nd in line, waits for a (")
    assert (
        f"before it stands still: somebody has stopped the process that holds its place; `kill -CONT {pid}`"
        in (texts()["b"])
    )
    job.stop()
    assert (job.wait(timeout=60).status, later.wait(timeout=60).status) == ("Stopped", "Completed")


def test_ctrl_c_during_the_start_of_the_waiter_leaves_the_line(machine, holder, home, monkeypatch, running):
    update = JobIndex.update

    def interrupted(index, name, **columns):
        changed = update(index, name, **columns)
        if columns.get("secondary_status") == "Pending":
            # Signals are blocked, so the interrupt arrives when the waiter has the job.
            signal.raise_signal(signal.SIGINT)
        return changed

    monkeypatch.setattr(JobIndex, "update", interrupted)
    # A shell has its background jobs ignore the signal, and Python leaves that as it is.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            fit()
    finally:
        signal.signal(signal.SIGINT, before)
    record = JobIndex(home.index).get("a")
    assert (record.status, record.secondary_status) == ("Stopped", "Stopped")
    assert [ticket.job for ticket in machine.folder.read().tickets] == ["other"]
    until(lambda: running() == [])


def test_an_error_while_the_waiter_starts_leaves_nothing(machine, holder, home, monkeypatch, running):
    update = JobIndex.update

    def failing(index, name, **columns):
        update(index, name, **columns)
        if columns.get("secondary_status") == "Pending":
            raise LaunchError("the disk is full")

    monkeypatch.setattr(JobIndex, "update", failing)
    with pytest.raises(LaunchError, match="the disk is full"):
        fit()
    assert JobIndex(home.index).names() == []
    assert not home.job("a").path.exists()
    assert [ticket.job for ticket in machine.folder.read().tickets] == ["other"]
    until(lambda: running() == [])


def test_max_wait_ends_the_waiting(machine, holder):
    job = fit(max_wait=1)
    assert (job.wait(timeout=60).status, job.secondary_status) == ("Stopped", "MaxWaitTimeExceeded")
    assert [ticket.job for ticket in machine.folder.read().tickets] == ["other"]


def test_a_job_that_cannot_start_on_its_turn_says_why_and_frees_its_gpu(machine, holder, home):
    job = fit()
    shutil.rmtree(home.job("a").logs)
    home.job("a").logs.touch()
    holder.leave()
    until(lambda: job.status == "Failed")
    assert "could not start" in job.failure.message or "controller" in job.failure.message
    until(lambda: machine.folder.read().tickets == ())


def test_shares_of_the_processors_are_claimed_where_the_machine_says_so(machine, monkeypatch):
    monkeypatch.setenv("HERRINGBONE_CPU_SHARES", "1")
    Path("train.py").write_text("import time\ntime.sleep(1)\n")
    first, second = fit(gpus=None), fit(gpus=None, job_name="b")
    assert second.secondary_status == "Pending"
    with pytest.raises(LaunchError, match=r"needs 1 CPU share of this machine, .* or `herringbone run --queue`$"):
        fit(gpus=None, queue=False, job_name="d")
    first.wait(timeout=60)
    assert second.wait(timeout=60).status == "Completed"
    assert first.ended <= second.started
    with pytest.raises(UnsupportedError, match="needs 2 CPU shares, and this machine has 1"):
        fit(gpus=None, instance_count=2, job_name="c")


def test_secrets_of_a_waiting_job_are_in_no_argument_and_no_file(machine, holder, home):
    job = fit(environment={"MY_TOKEN": "hunter2-very-secret"})
    record = JobIndex(home.index).get("a")
    arguments = Path(f"/proc/{pid_of(record.client)}/cmdline").read_bytes()
    assert b"hunter2" not in arguments
    files = [path for root in (home.path, Path(machine.folder.path)) for path in root.rglob("*") if path.is_file()]
    assert [path for path in files if b"hunter2" in path.read_bytes()] == []
    assert "hunter2" not in json.dumps(job.describe())
    job.stop()
    job.wait(timeout=60)


def test_a_waiter_imports_little_while_it_waits():
    code = (
        "import sys; from herringbone.backends import waiter; "
        "print(sorted(set(sys.modules) & {'sqlite3', 'yaml', 'click', 'rich', 'asyncio', 'pathspec'}))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_a_job_can_be_attached_to_while_it_waits(machine, holder):
    fit()
    job = TrainingJob.attach("a")
    assert job.secondary_status == "Pending"
    assert job.plan.queue
    job.stop()
    job.wait(timeout=60)
