"""A node goes down during a job: the job restarts on other nodes and reaches the weights of an undisturbed run."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from tests.sdk.events.test_kept_checkpoints import SCRIPT as SAVES_TEN
from tests.slurm.conftest import rank_lines

pytestmark = pytest.mark.slurm

# Two ranks add their gradients over a connection of their own. Rank 0 saves every five steps, and both resume from the
# last checkpoint. Without torch, whose import takes longer than the rest of the test.
TRAINS = """
import json, os, random, socket, time
from pathlib import Path
rank, address = int(os.environ["RANK"]), (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
def connect():
    while True:
        try:
            return socket.create_connection(address)
        except OSError:
            time.sleep(0.05)
other = socket.create_server(address).accept()[0] if rank == 0 else connect()
# Two files: one file for both directions would drop what it had read ahead at each write.
theirs, mine = other.makefile("r"), other.makefile("w")
saved = Path("/".join([os.environ["SAGEMAKER_BASE_DIR"], "checkpoints", "state.json"]))
step, weights, momentum = json.loads(saved.read_text()) if saved.exists() else (0, [1.0] * 8, [0.0] * 8)
if step:
    print("resumed at", step, flush=True)
while step < 40:
    values = random.Random(step * 2 + rank)
    gradients = [values.gauss(0, 1) * weight for weight in weights]
    print(json.dumps(gradients), file=mine, flush=True)
    sums = [a + b for a, b in zip(gradients, json.loads(theirs.readline()), strict=True)]
    momentum = [0.9 * old + new for old, new in zip(momentum, sums, strict=True)]
    weights = [weight - 0.01 * speed for weight, speed in zip(weights, momentum)]
    step += 1
    if step % 5 == 0:
        if rank == 0:
            saved.with_suffix(".new").write_text(json.dumps([step, weights, momentum]))
            saved.with_suffix(".new").replace(saved)
            print("saved", file=mine, flush=True)
        else:
            assert theirs.readline() == "saved\\n"
        print("step", step, flush=True)
    time.sleep(float(os.environ["PAUSE"]))
if rank == 0:
    Path(os.environ["SM_MODEL_DIR"], "weights.json").write_text(json.dumps(weights))
"""


def _weights(job):
    with tarfile.open(job.model_data.removeprefix("file://")) as archive:
        return json.load(archive.extractfile("weights.json"))


def _nodes(cluster, job):
    """Wait until a job has saved twice; return its nodes."""
    cluster.wait(lambda: "step 10" in rank_lines(job), 60)
    (nodes,) = cluster.ask("squeue", "--noheader", f"--name={job.name}", "--Format=NodeList:20").split()
    return cluster.ask("scontrol", "show", "hostnames", nodes).split()


@pytest.fixture
def trains(submit, tmp_path: Path):
    """Submits the training under a name, with a pause after each step, in seconds."""
    return lambda name, pause: submit(
        TRAINS, job_name=name, instance_count=2, environment={"PAUSE": pause}, checkpoint_s3_uri=str(tmp_path / name)
    )


@pytest.fixture(scope="module")
def expected():
    """The weights of an undisturbed run, once there was one."""
    return []


def test_a_lost_node_does_not_change_the_weights(trains, cluster, expected):
    expected.append(_weights(trains("undisturbed", "0").wait(timeout=60)))
    disturbed = trains("disturbed", "0.1")
    lost = _nodes(cluster, disturbed)[1]
    cluster.take_down(lost)
    try:
        cluster.wait(lambda: disturbed.secondary_status == "Restarting", 60)
        cluster.notice(lost)
        assert disturbed.wait(timeout=100).status == "Completed"
    finally:
        cluster.bring_up(lost)
    assert any(line.startswith("resumed at") for line in rank_lines(disturbed))
    log = [line.text for line in disturbed.logs() if line.rank is None]
    assert any(text.startswith("attempt 2 of 4: ") for text in log)
    assert any(f"the next attempt has other nodes than {lost}" in text for text in log)
    assert "Restarting" in [state["Status"] for state in disturbed.describe()["SecondaryStatusTransitions"]]
    assert [_weights(disturbed)] == expected
    [restart] = disturbed.view().restarts
    assert (restart.attempt, "was lost" in restart.why) == (2, True)


def test_a_lost_controller_node_does_not_change_the_weights(trains, cluster, expected):
    job = trains("beheaded", "0.1")
    lost = _nodes(cluster, job)[0]
    cluster.take_down(lost)
    try:
        cluster.notice(lost)
        assert job.wait(timeout=100).status == "Completed", job.failure
    finally:
        cluster.bring_up(lost)
    assert any(line.startswith("resumed at") for line in rank_lines(job))
    assert [_weights(job)] == expected
    view = job.view()
    assert [restart.why for restart in view.restarts] == ["Slurm restarted the job"]
    assert "Restarting" in [one.state for one in view.states]


def test_a_job_that_an_administrator_requeues_goes_on(trains, cluster):
    job = trains("requeued", "0.1")
    cluster.wait(lambda: "step 10" in rank_lines(job), 60)
    (number,) = cluster.ask("squeue", "--noheader", "--name=requeued", "--Format=JobID").split()
    cluster.ask("scontrol", "requeue", number)
    assert job.wait(timeout=60).status == "Completed"
    assert any(line.startswith("resumed at") for line in rank_lines(job))


STANDS_ASIDE = """
import os, signal, sys, time
from pathlib import Path
saved = Path(os.environ["SM_CHECKPOINT_DIR"], "saved")
if saved.exists():
    sys.exit()
def save(*_):
    saved.touch()
    sys.exit()
signal.signal(signal.SIGTERM, save)
print("up", flush=True)
time.sleep(60)
"""


# Slurm's SIGTERM goes to the ranks, too, which handle none.
ASKS = """
import os, sys, time
from pathlib import Path
import herringbone
saved = Path(os.environ["SM_CHECKPOINT_DIR"], "saved")
if saved.exists():
    sys.exit()
while not herringbone.should_stop():
    print("up", flush=True)
    time.sleep(0.2)
saved.touch()
"""


@pytest.mark.parametrize(("script", "asks"), [(STANDS_ASIDE, False), (ASKS, True)])
def test_a_preempted_job_that_ends_within_its_grace_goes_back_into_the_queue(submit, cluster, script, asks):
    """Slurm took an end within GraceTime for the job's own, and never started it again."""
    job = submit(script, job_name="preempted", instance_type="slurm:idle")
    cluster.wait(lambda: "up" in rank_lines(job), 60)
    cluster.ask("sbatch", "--partition=gpu", "--nodes=4", "--exclusive", "--output=/dev/null", "--wrap=sleep 1")
    assert job.wait(timeout=60).status == "Completed", job.failure
    view = job.view()
    assert [restart.why for restart in view.restarts] == ["Slurm took its nodes away before its end"]
    assert "Restarting" in [one.state for one in view.states]
    # Without a question, the rank may save before its supervisor hears of the stop.
    assert not asks or [stop.saved for stop in view.stops] == ["saved"]


def test_a_preempted_job_that_may_not_be_requeued_says_that_it_was_interrupted(submit, cluster):
    job = submit(STANDS_ASIDE, instance_type="slurm:idle", slurm={"cpus": 1, "requeue": False})
    cluster.wait(lambda: "up" in rank_lines(job), 60)
    cluster.ask("sbatch", "--partition=gpu", "--nodes=4", "--exclusive", "--output=/dev/null", "--wrap=sleep 1")
    assert job.wait(timeout=60).status == "Stopped"
    assert job.secondary_status == "Interrupted"


def test_the_newest_and_the_best_checkpoints_are_left_over_a_lost_node(submit, tmp_path: Path):
    (own := tmp_path / "own").mkdir()
    (own / "step-00.pt").write_bytes(b"of another job")
    job = submit(
        SAVES_TEN,
        instance_count=2,
        distribution={"torch_distributed": {"enabled": True}},
        checkpoint_s3_uri=str(own),
        keep_checkpoints={"last": 2, "best": 1, "metric": "eval/loss", "objective_type": "Minimize"},
        max_retry_attempts=1,
    ).wait()
    assert job.status == "Completed", job.failure
    assert len(job.view().restarts) == 1
    assert sorted(path.name for path in own.glob("*.pt")) == [f"step-{step:02d}.pt" for step in (0, 3, 9, 10)]
