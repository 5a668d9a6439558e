"""Jobs on a real Slurm: how they run, end and are stopped, and that nothing is left of them."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from herringbone import JobFailedError, TrainingJob
from herringbone.cli.__main__ import main
from tests.slurm.conftest import rank_lines

pytestmark = pytest.mark.slurm

WAITS = """
import os, signal, sys, time
def leave(number, frame):
    print("got SIGTERM", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("begins", os.environ["RANK"], flush=True)
time.sleep(600)
"""


def _started(job, ranks):
    return lambda: sum(line.startswith("begins") for line in rank_lines(job)) == ranks


def test_supervisors_place_the_ranks_of_two_nodes_with_slurms_gpus(submit, home):
    job = submit(
        """
        import os
        gpus = len(os.environ["CUDA_VISIBLE_DEVICES"].split(","))
        rank, node = os.environ["RANK"], os.environ["SLURMD_NODENAME"]
        print(rank, os.environ["WORLD_SIZE"], node, gpus, os.environ["SM_NUM_GPUS"])
        assert "SLURM_PROCID" not in os.environ and "SLURM_JOBID" not in os.environ
        open(os.path.join(os.environ["SM_MODEL_DIR"], os.environ["SM_CURRENT_HOST"]), "w").close()
        """.replace("\n        ", "\n"),
        instance_count=2,
        slurm={"cpus": 1, "gres": "gpu:2"},
    ).wait()
    assert job.status == "Completed"
    nodes = [line.split() for line in sorted(rank_lines(job))]
    assert [words[:2] + words[3:] for words in nodes] == [["0", "2", "2", "2"], ["1", "2", "2", "2"]]
    assert nodes[0][2] != nodes[1][2]
    with tarfile.open(job.model_data.removeprefix("file://")) as model:
        assert model.getnames() == ["algo-1", "algo-2"]


def test_a_failing_script_is_reported_as_on_other_backends(submit, cluster):
    fails = "import os, time\nif os.environ['RANK'] == '1': raise ValueError('no such digit')\ntime.sleep(60)"
    job = submit(fails, instance_count=2)
    with pytest.raises(JobFailedError, match="rank 1 on algo-2: ValueError: no such digit"):
        job.follow()
    # Slurm's own state must be FAILED as well: its users see it, and dependent jobs wait for it.
    words = ("squeue", "--noheader", "--states=all", f"--name={job.name}", "--Format=State")
    cluster.wait(lambda: cluster.ask(*words).strip() == "FAILED")


def test_a_stop_reaches_every_rank_and_leaves_no_process(submit, cluster):
    job = submit(WAITS, instance_count=2)
    cluster.wait(_started(job, 2))
    job.stop()
    assert job.wait(timeout=30).status == "Stopped"
    assert rank_lines(job).count("got SIGTERM") == 2
    cluster.wait(lambda: not cluster.processes())


def test_a_stop_takes_a_waiting_job_out_of_the_queue(submit, cluster):
    first = submit(WAITS, instance_count=4, slurm={})
    cluster.wait(_started(first, 4))
    second = submit(WAITS, instance_count=4, slurm={})
    cluster.wait(lambda: second.secondary_status == "Pending")
    message = second.describe()["SecondaryStatusTransitions"][-1]["StatusMessage"]
    assert "waits (" in message, message
    second.stop()
    assert second.wait(timeout=20).status == "Stopped"
    assert first.status == "InProgress"
    first._backend.kill(first.name)
    assert first.status == "Stopped"


def test_a_job_that_an_administrator_cancels_has_stopped(submit, cluster):
    job = submit(WAITS, instance_count=2)
    cluster.wait(_started(job, 2))
    cluster.ask("scancel", f"--name={job.name}")
    assert job.wait(timeout=30).status == "Stopped"


def test_user_code_gets_sigterm_before_the_limit(submit):
    job = submit(WAITS, instance_count=2, max_run=14).wait(timeout=60)
    assert (job.status, job.secondary_status) == ("Stopped", "MaxRuntimeExceeded")
    assert rank_lines(job).count("got SIGTERM") == 2
    assert any("max_run of 14 s is over in 7 s: stopping" in line.text for line in job.logs())


def test_twenty_jobs_at_once_are_not_mixed_up(submit, cluster):
    jobs = [
        submit(
            f"import os\nprint('this is {number}')\n"
            f"open(os.path.join(os.environ['SM_MODEL_DIR'], 'job-{number}'), 'w').close()",
            job_name=f"one-of-twenty-{number}",
        )
        for number in range(20)
    ]
    for number, job in enumerate(jobs):
        assert job.wait(timeout=60).status == "Completed"
        assert rank_lines(job) == [f"this is {number}"]
        with tarfile.open(job.model_data.removeprefix("file://")) as model:
            assert model.getnames() == [f"job-{number}"]


def test_only_the_owner_can_read_the_secrets(submit, cluster, home, monkeypatch):
    monkeypatch.setenv("MY_OWN_TOKEN", "t0psecr3t-unnamed")
    text = "import os\nassert 'MY_OWN_TOKEN' not in os.environ and len(os.environ['API_KEY']) == 15\n" + WAITS
    job = submit(text, instance_count=2, environment={"API_KEY": "t0psecr3t-named"})
    cluster.wait(_started(job, 2))
    config = home.job(job.name).path / "order.json"
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    assert stat.S_IMODE(config.parent.stat().st_mode) == 0o700
    output = cluster.ask("scontrol", "show", "job", "-dd") + " ".join(cluster.processes().values())
    output += cluster.ask("scontrol", "write", "batch_script", json.loads(job._record().service)["job"], "-")
    assert "t0psecr3t" not in output
    spool = [path for path in cluster.folder.rglob("*") if path.is_file()]
    assert not [path for path in spool if b"t0psecr3t" in path.read_bytes()]
    job.stop()
    job.wait(timeout=30)
    files = [path for path in home.path.rglob("*") if path.is_file() and b"t0psecr3t" in path.read_bytes()]
    assert files == []


def test_the_command_line_and_another_process_know_the_job(submit, cluster, capsys):
    job = submit(WAITS)
    cluster.wait(_started(job, 1))
    code = f"from herringbone import attach; print(attach({job.name!r}).status)"
    attached = subprocess.run([sys.executable, "-c", code], env=os.environ, capture_output=True, text=True)
    assert attached.stdout == "InProgress\n", attached.stderr
    assert main(["logs", job.name]) == 0
    assert "[algo-1:0] begins 0" in capsys.readouterr().out
    assert main(["stop", job.name]) == 0
    job.wait(timeout=30)
    capsys.readouterr()
    assert main(["ls"]) == 0
    assert "Stopped" in capsys.readouterr().out
    assert main(["describe", "--json", job.name]) == 0
    assert json.loads(capsys.readouterr().out)["TrainingJobStatus"] == "Stopped"


def test_a_job_survives_the_death_of_its_client(submit, cluster, home):
    """The client dies right after sbatch has answered, so the row has no job id yet."""
    Path("train.py").write_text("print('goes on')")
    code = """
import os
from herringbone import Estimator
from herringbone.backends.slurm.backend import SlurmBackend
send = SlurmBackend._send
SlurmBackend._send = lambda *arguments: (send(*arguments), os._exit(9))
Estimator("train.py", instance_type="slurm:gpu", slurm={"cpus": 1}).fit(job_name="orphan")
"""
    assert subprocess.run([sys.executable, "-c", code], env=os.environ).returncode == 9
    job = TrainingJob.attach("orphan").wait(timeout=30)
    assert job.status == "Completed"
    assert rank_lines(job) == ["goes on"]
