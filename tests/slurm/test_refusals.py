"""Errors that are found before anything starts: by the review of the plan, and by Slurm's check of the request."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from herringbone import Estimator, InputError, SlurmError, UnsupportedError
from herringbone.api.planning import plan_request
from herringbone.backends.slurm.backend import SlurmBackend
from herringbone.backends.slurm.commands import SlurmCommands
from herringbone.backends.slurm.review import check as check_plan
from herringbone.backends.slurm.review import check_cluster, explain, parse_sinfo
from herringbone.backends.slurm.shared import check_shared, file_system_of
from herringbone.controller.record import FileRecord
from herringbone.records.home import Home
from herringbone.records.index import JobRecord
from tests.slurm.test_script import plan

MOUNTS = "/dev/sda / ext4 rw 0 0\nserver:/home /home nfs4 rw 0 0\ntmpfs /home/me/my\\040disk tmpfs rw 0 0\n"


@pytest.mark.slurm
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"instance_type": "slurm:gpus"}, "no partition gpus that this user may see; it has: gpu, idle, paid"),
        ({"instance_count": 5}, "larger than the partition: .*5 hosts are asked for, and partition gpu has 4 nodes"),
        ({"slurm": {"gres": "gpu:3"}}, "larger than the partition: .*gres gpu:2"),
        ({"slurm": {"gres": "tpu:1"}}, "slurm: gres tpu:1: Slurm refuses it"),
        ({"slurm": {"constraint": "ib"}}, "slurm: constraint ib: Slurm refuses it"),
        ({"slurm": {"cpus": 9}}, "larger than the partition"),
        ({"slurm": {"cpus": 1, "memory": "9G"}}, "larger than the partition"),
        ({"instance_type": "slurm:paid", "max_run": 60, "slurm": {"account": "nobody"}}, "slurm: account nobody"),
        ({"instance_type": "slurm:paid"}, "max_run: 86400 s is more than partition paid allows, .* give max_run=3600"),
    ],
)  # fmt: skip
def test_requests_that_slurm_refuses_or_would_keep_waiting(home, options, text):
    Path("train.py").touch()
    estimator = Estimator("train.py", **{"instance_type": "slurm:gpu", "instance_count": 1, **options})
    with pytest.raises(InputError, match=text):
        estimator.fit()
    assert not home.path.exists()


@pytest.mark.slurm
def test_a_plan_shows_the_script_and_the_unused_options(home):
    Path("train.py").touch()
    job_plan = Estimator("train.py", instance_type="slurm:gpu", instance_count=2, volume_size=50, max_run=60).plan()
    assert "batch script:      #SBATCH --nodes=2" in str(job_plan)
    assert job_plan.request["script"].splitlines()[0] == "#!/bin/bash"
    assert job_plan.unused == ("volume_size",)
    assert not home.path.exists()


def test_our_keys_are_refused_with_an_image_of_aws():
    """AWS's library in such an image knows no `rails`; the job would train without them."""
    aws = "763104351884.dkr.ecr.us-west-2.amazonaws.com/pytorch-training:2.0.0-gpu-py310"
    distribution = {"smdistributed": {"dataparallel": {"enabled": True, "rails": ["eth0"]}}}
    # Any other image may be Herringbone's; the next check finds no script.
    with pytest.raises(InputError, match="no such file"):
        check_plan(plan(image_uri="team/herringbone:1", distribution=distribution))
    with pytest.raises(UnsupportedError, match=r"not built by Herringbone, cannot serve[^$]*dataparallel.*rails"):
        check_plan(plan(image_uri=aws, distribution=distribution))


@pytest.fixture
def without_slurm(tmp_path, monkeypatch):
    """A backend on a machine without Slurm's programs, and a script."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "home"))
    (tmp_path / "train.py").touch()
    return SlurmBackend(Home(tmp_path / "home"), {"PATH": str(tmp_path)})


def test_without_slurm_the_error_says_what_to_do(without_slurm):
    estimator = Estimator("train.py", instance_type="slurm:gpu")
    with pytest.raises(SlurmError, match=re.escape("sinfo is not on this machine: work on a login node")):
        plan_request(estimator._asked(None), without_slurm)


def a_row(backend):
    """Add a job that another machine submitted, or that was submitted before Slurm went away."""
    backend._home.make()
    row = JobRecord(name="digits-1", backend="slurm", plan="{}", created=1.0, service='{"job": "7", "login": null}')
    backend._index.add(row)
    return row


def test_a_kill_while_the_controller_packs_lets_it_remove_what_it_packed(tmp_path):
    """SIGKILL left half of an archive, and nobody said where the model is."""
    backend = SlurmBackend(Home(tmp_path), {}, connect=lambda login: Slurm())
    row, asked = a_row(backend), []
    backend._home.job(row.name).path.mkdir(parents=True)
    report = FileRecord(backend._report_path(row.name))
    report.begin(status="Stopping", secondary_status="Uploading", attempt=0)

    class Slurm:
        def ask(self, *words):
            asked.append(words)
            if words[0] == "scancel":
                report.finish(status="Stopped", secondary_status="Stopped", ended=2.0)
            return "7|RUNNING||0|n1|/jobs|\n"

    backend.kill(row.name)
    assert [words for words in asked if words[0] == "scancel"] == [("scancel", "--batch", "--signal=INT", "7")]
    assert backend.describe(row.name).status == "Stopped"


def test_describe_without_slurm_raises(without_slurm):
    a_row(without_slurm)
    with pytest.raises(SlurmError, match="squeue is not on this machine"):
        without_slurm.describe("digits-1")


def test_a_controller_that_restarts_is_waited_for(tmp_path):
    silent = Cluster(squeue=(1, "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"))
    backend = SlurmBackend(Home(tmp_path), {}, connect=lambda login: SlurmCommands({}, login, run=silent))
    row = a_row(backend)
    assert backend.describe("digits-1") == row


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"enable_network_isolation": True}, "enable_network_isolation: nodes of a cluster share its network"),
        ({"checkpoint_s3_uri": "gs://bucket/here"}, "is not on this machine"),
        ({"checkpoint_s3_uri": "s3://bucket/here"}, "the credentials come from environment variables"),
    ],
)
def test_unsupported_options_are_refused(without_slurm, monkeypatch, options, text):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "mock")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "mock")
    with pytest.raises(UnsupportedError, match=text):
        plan_request(Estimator("train.py", instance_type="slurm:gpu", **options)._asked(None), without_slurm)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("sbatch: error: Invalid account or account/partition combination specified", "slurm: account team-a"),
        ("allocation failure: Invalid qos specification", "slurm: qos high"),
        ("allocation failure: User's group not permitted to use this partition", "this user"),
        ("allocation failure: Access/permission denied", "this user"),
        ("Unable to contact slurm controller", "Slurm refuses the job: Unable to contact"),
    ],
)
def test_slurms_messages_are_translated_to_options(message, text):
    kinds = parse_sinfo("gpu|infinite|4|8|4000|gpu:2\n")
    assert explain(message, plan(slurm={"account": "team-a", "qos": "high"}), kinds).startswith(text)


@pytest.mark.parametrize(
    ("path", "file_system"), [("/home/me/jobs", "nfs4"), ("/srv/jobs", "ext4"), ("/home/me/my disk/jobs", "tmpfs")]
)
def test_the_type_of_a_folders_file_system(path, file_system):
    assert file_system_of(Path(path), MOUNTS) == file_system


class Cluster:
    """Replaces `subprocess.run`: answers each program with a code and an output, and records the commands."""

    def __init__(self, **answers):
        self.answers = answers
        self.asked = []

    def __call__(self, command, **_):
        import subprocess

        self.asked.append(command)
        code, text = self.answers[command[0]]
        return subprocess.CompletedProcess(command, code, stdout=text, stderr=text)


def check(folder, cluster, login=None, this_host="login1"):
    slurm = SlurmCommands(os.environ, login, run=cluster)
    check_shared(Path(folder), slurm, partition=["--partition=gpu"], this_host=this_host, mounts=MOUNTS)


def test_a_shared_file_system_needs_no_question():
    check("/home/me/jobs", cluster := Cluster())
    assert cluster.asked == []


def test_on_a_cluster_of_this_machine_alone_every_folder_is_shared():
    check("/srv/jobs", Cluster(sinfo=(0, "login1\nlogin1\n")))


def test_a_node_is_asked_when_the_file_system_belongs_to_one_machine():
    check("/srv/it's jobs", cluster := Cluster(sinfo=(0, "a1\na2\n"), srun=(0, "yes\n")))
    assert cluster.asked[-1][-1] == "/srv/it's jobs"
    with pytest.raises(
        InputError, match=r"the nodes do not see the folder /srv/jobs, which is on ext4 .* HERRINGBONE_HOME"
    ):
        check("/srv/jobs", Cluster(sinfo=(0, "a1\n"), srun=(0, "no\n")))


def test_without_a_free_node_the_folder_is_accepted():
    check("/srv/jobs", Cluster(sinfo=(0, "a1\n"), srun=(1, "Unable to allocate resources: Immediate")))


def test_a_login_node_must_see_the_folder():
    with pytest.raises(InputError, match="me@login1 does not see the folder /home/me/jobs"):
        check("/home/me/jobs", cluster := Cluster(ssh=(1, "")), login="me@login1")
    ((*words, command),) = cluster.asked
    assert (words[0], words[-2:]) == ("ssh", ["--", "me@login1"])
    assert {"BatchMode=yes", "RemoteCommand=none", "PermitLocalCommand=no"} < set(words)
    # Behind the program that takes away variables of Slurm's commands.
    assert command.startswith("sh -c 'names=")
    assert command.endswith(" sh test -d /home/me/jobs")


def test_login_files_that_leave_are_named():
    """sinfo answered with nothing, and the error said that the cluster had no such partition."""
    slurm = SlurmCommands({}, "me@login1", run=Cluster(ssh=(0, "Welcome\n")))
    with pytest.raises(SlurmError, match="sinfo on me@login1 lists no partition: does a login file there leave"):
        check_cluster(plan(), slurm, [], "")


def test_ssh_quotes_each_word():
    SlurmCommands({}, "me@login1", run=(cluster := Cluster(ssh=(0, "")))).ask("sbatch", "--chdir=/a b;id")
    assert cluster.asked[0][-1].endswith(" sh sbatch '--chdir=/a b;id'")
