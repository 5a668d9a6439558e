"""Tests of retries: a machine is lost, and the job restarts on the others from its newest checkpoint."""

import json
import os
import signal
import tarfile
import time

import pytest

from herringbone import TrainingJob
from herringbone.backends.ssh.backend import SshBackend

from .conftest import expect

pytestmark = pytest.mark.ssh

# Any number of ranks divide the twelve samples of a step. Rank 0 sums their gradients and saves every fifth step.
# Without torch, whose import would take longer than the whole test.
TRAINS = """
import json, os, random, socket, time
from pathlib import Path
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
def connect():
    while True:
        try:
            return socket.create_connection(address)
        except OSError:
            time.sleep(0.05)
if rank == 0:
    server = socket.create_server(("", address[1]))
    others = [server.accept()[0] for _ in range(size - 1)]
else:
    others = [connect()]
ends = [(other.makefile("r"), other.makefile("w")) for other in others]
def say(value):
    for _, write in ends:
        print(json.dumps(value), file=write, flush=True)
def hear():
    return [json.loads(read.readline()) for read, _ in ends]
saved = Path(os.environ["SAGEMAKER_BASE_DIR"], "checkpoints", "state.json")
step, weights = json.loads(saved.read_text()) if saved.exists() else (0, [1.0] * 8)
print("from step", step, "of", size, flush=True)
began = step
while step < 30:
    mine = [0.0] * 8
    for sample in range(rank, 12, size):
        values = random.Random(step * 12 + sample)
        mine = [old + values.gauss(0, 1) * weight for old, weight in zip(mine, weights)]
    if rank == 0:
        total = [sum(column) for column in zip(mine, *hear())]
        say(total)
    else:
        say(mine)
        (total,) = hear()
    weights = [weight - 0.01 * gradient for weight, gradient in zip(weights, total)]
    step += 1
    if rank == 0 and step % 5 == 0:
        saved.with_suffix(".new").write_text(json.dumps([step, weights]))
        saved.with_suffix(".new").replace(saved)
    print("step", step, flush=True)
    while f"{began}:{step}" in os.environ["HOLDS"].split():
        time.sleep(1)
if rank == 0:
    Path(os.environ["SM_MODEL_DIR"], "weights.json").write_text(json.dumps(weights))
"""


def weights(job):
    assert job.status == "Completed", job.failure.render()
    with tarfile.open(job.model_data.removeprefix("file://")) as archive:
        return json.load(archive.extractfile("weights.json"))


def texts(job):
    return [line.text for line in job.logs(host="algo-1")]


@pytest.fixture
def train(submit):
    """A function that submits the training; "A:B" in `holds` pauses the attempt that began at step A at step B."""

    def start(name, *, holds="", **options):
        return submit(TRAINS, name=name, environment={"HOLDS": holds}, **options)

    return start


@pytest.fixture
def undisturbed(train):
    return weights(train("undisturbed").wait())


def kill_supervisor(machines, name):
    for pid in machines.pids(name, "-m herringbone_entry"):
        os.kill(pid, signal.SIGKILL)


def test_a_killed_supervisor_and_a_cut_link_end_attempts_and_not_the_job(train, machines, undisturbed):
    # Only algo-1 has checkpoints; they are sent to the machines of the next attempt.
    job = train("disturbed", holds="0:7 5:12", max_retry_attempts=2, min_instance_count=2)
    expect(job, "step 7")
    started = time.monotonic()
    kill_supervisor(machines, "h-1")
    expect(job, "from step 5 of 3")
    print(f"a supervisor killed, the next attempt's first line after {time.monotonic() - started:.1f} s")
    expect(job, "step 12")
    started = time.monotonic()
    machines.cut("h-3")
    try:
        expect(job, "from step 10 of 2", seconds=60)
        print(f"a link cut, the next attempt's first line after {time.monotonic() - started:.1f} s")
        followed = [line.text for line in job.logs(follow=True, host="algo-1")]
        assert job.wait(timeout=60).status == "Completed", job.failure.render()
    finally:
        machines.reconnect("h-3")
    assert weights(job) == pytest.approx(undisturbed, abs=1e-6)
    announcements = [text for text in texts(job) if text.startswith("attempt")]
    assert announcements[0] == (
        "attempt 2 of 3: algo-1 on h-1 was lost (exit code 137, killed by SIGKILL); restarting on h-1, h-2, h-3; "
        "newest checkpoint: state.json"
    )
    assert announcements[1].startswith("attempt 3 of 3: algo-3 on h-3 was lost (")
    assert "restarting on h-1, h-2; newest checkpoint: state.json" in announcements[1]
    # A reader who follows the log gets each line of each attempt once.
    assert followed == texts(job)
    assert "from step 10 of 2" in texts(job)
    hosts = [attempt["Hosts"] for attempt in job.describe()["Attempts"]]
    assert hosts == [{"algo-1": "h-1", "algo-2": "h-2", "algo-3": "h-3"}] * 2


def test_a_policy_excludes_the_machine_whose_log_matches(submit):
    job = submit(
        "import os, sys, time\n"
        "print(os.environ['TRAINING_JOB_NAME'], os.uname().nodename, 'score=2', flush=True)\n"
        "if os.uname().nodename == 'h-2':\n"
        # The other rank prints its score first.
        "    time.sleep(1)\n"
        "    sys.exit('CUDA error: uncorrectable ECC error encountered')\n",
        hosts=2,
        name="bad-gpu",
        max_retry_attempts=1,
        metric_definitions=[{"Name": "score", "Regex": r"score=(\d)"}],
    )
    followed = list(job.events(follow=True))
    assert job.wait(timeout=60).status == "Completed", job.failure.render()
    (attempt,) = job.describe()["Attempts"]
    assert attempt["ExcludedHosts"] == ["h-2"]
    # A reader who follows the events gets each event of each attempt once.
    assert sorted(map(repr, followed)) == sorted(map(repr, job.events()))
    assert [(metric.value, metric.host) for metric in job.metrics()].count((2.0, "algo-1")) == 2
    view = job.view()
    assert [(restart.attempt, restart.machines) for restart in view.restarts] == [(2, ["h-2"])]
    assert [one.state for one in view.states] == [
        *("Starting", "Training", "Restarting", "Training", "Uploading", "Completed")
    ]
    (announcement,) = [text for text in texts(job) if text.startswith("attempt")]
    assert "exclude_host by the log of algo-2 on h-2" in announcement
    assert "restarting on h-1, h-3, without h-2 from now on; there is no checkpoint" in announcement
    # The script sees one job name, although machines have a name per attempt. The log holds both attempts.
    second = [line.text for line in job.logs(host="algo-2") if line.text.startswith("bad-gpu")]
    assert second == ["bad-gpu h-2 score=2", "bad-gpu h-3 score=2"]


ASKS = """
import os, time
from pathlib import Path
from herringbone import should_stop
saved = Path(os.environ["SM_CHECKPOINT_DIR"], "saved")
print("begins on", os.uname().nodename, flush=True)
if not saved.exists():
    while not should_stop():
        time.sleep(0.05)
    if os.environ["RANK"] == "0":
        saved.write_text("1")
"""


def test_a_machine_that_is_about_to_go_is_saved_from_and_left_out(submit, tmp_path):
    notice = ["sh", "-c", f'test "$(uname -n)" = h-2 && test -e {tmp_path}/drain']
    job = submit(ASKS, hosts=2, name="drained", max_retry_attempts=1, drain_notice=notice)
    expect(job, "begins on h-1")
    (tmp_path / "drain").touch()
    assert job.wait(timeout=60).status == "Completed", job.failure.render()
    (attempt,) = job.describe()["Attempts"]
    assert attempt["ExcludedHosts"] == ["h-2"]
    assert [stop.saved for stop in job.view().stops] == ["saved"]
    (announcement,) = [text for text in texts(job) if text.startswith("attempt")]
    assert "restarting on h-1, h-3, without h-2 from now on; newest checkpoint: saved" in announcement


def test_a_python_without_the_secrets_cannot_retry_and_says_so(submit, machines, home, transport):
    job = submit(
        "import time; print('ready', flush=True); time.sleep(600)",
        hosts=1,
        name="secret",
        environment={"API_TOKEN": "x"},
        max_retry_attempts=1,
        retry_without_client=False,
    )
    expect(job, "ready")
    job._backend._close("secret")
    kill_supervisor(machines, "h-1")
    other = TrainingJob("secret", SshBackend(home, transport))
    assert other.wait(timeout=60).status == "Failed"
    assert "only the Python that submitted it knows API_TOKEN, and it is gone" in other.failure.message


# Each rank saves a file of its own in its host's own folder, and waits until the first step's are gone on both hosts.
SAVES = """
import os, time, zipfile
from pathlib import Path
from herringbone_contract.events import emit
rank, folder = int(os.environ["RANK"]), Path(os.environ["SM_CHECKPOINT_DIR"])
def names():
    return " ".join(sorted(path.name for path in folder.glob("*.pt")))
print("begins with", names(), flush=True)
first = max([int(path.stem.rpartition("-")[2]) for path in folder.glob("*.pt")], default=0) + 1
time.sleep(1.5)
for step in range(first, first + 4):
    if rank == 0:
        emit.metric("loss", abs(step - 2), step)
    with zipfile.ZipFile(folder / ".new", "w") as archive:
        archive.writestr("data.pkl", b"x")
    (folder / ".new").rename(folder / f"rank-{rank}-step-{step}.pt")
while f"rank-{rank}-step-{first + 2}.pt" in names():
    time.sleep(0.1)
print("has", names(), flush=True)
time.sleep(2 if first > 1 else 60)
"""


def test_hosts_with_folders_of_their_own_keep_the_same_checkpoints(submit, machines):
    keep = {"last": 1, "best": 1, "metric": "loss", "objective_type": "Minimize"}
    job = submit(SAVES, name="kept", keep_checkpoints=keep, max_retry_attempts=1)
    for rank in range(3):
        expect(job, f"has rank-{rank}-step-2.pt rank-{rank}-step-4.pt")
    kill_supervisor(machines, "h-1")
    assert job.wait().status == "Completed", job.failure.render()
    left = [f"rank-{rank}-step-{step}.pt" for rank in range(3) for step in (2, 4)]
    lines = [line.text for line in job.logs() if line.rank is not None]
    assert lines.count(f"begins with {' '.join(left)}") == 3
    # The best one of the first attempt is still known; the others' files, which each host has now, went along.
    for rank in range(3):
        left = sorted([*(f"rank-{one}-step-2.pt" for one in range(3)), f"rank-{rank}-step-8.pt"])
        assert lines[-3:].count(f"has {' '.join(left)}") == 1
