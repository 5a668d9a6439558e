"""The input of sbatch as literals; user input in it is one plain word, or quoted."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from herringbone import Estimator
from herringbone.backends.slurm.controller_config import config_of
from herringbone.backends.slurm.script import ScriptContext, batch_script, partition_of, sbatch_words, warning_seconds
from herringbone.records.home import Home, JobFolder
from herringbone_contract.errors import OptionError, UnsupportedError
from tests.plans import plan_of

HOME = Home(Path("/shared/me/.herringbone"))


def plan(instance_type="slurm:gpu", count=2, **options):
    hosts = {} if "instance_groups" in options else {"instance_type": instance_type, "instance_count": count}
    return plan_of(Estimator("train.py", **hosts, **options)._request, "/work", backend="slurm")


def script(job_plan, folder="/shared/me/.herringbone/jobs/digits-1", **environ):
    return batch_script(
        job_plan, ScriptContext(JobFolder(Path(folder)), "/shared/venv/bin/python", environ), grace=110.0
    )


def test_a_job_with_all_settings():
    settings = {"account": "team-a", "qos": "high", "gres": "gpu:a100:4", "constraint": "nvlink&ib", "cpus": 16}
    job_plan = plan(max_run=5400, slurm={**settings, "memory": "64G", "requeue": False})
    assert script(job_plan, PYTHONPATH="/shared/my libs") == (
        """\
#!/bin/bash
#SBATCH --job-name=digits-1
#SBATCH --partition=gpu
#SBATCH --account=team-a
#SBATCH --qos=high
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --mem=64G
#SBATCH --gres=gpu:a100:4
#SBATCH --constraint=nvlink&ib
#SBATCH --time=90
#SBATCH --signal=B:TERM@55
#SBATCH --open-mode=append
#SBATCH --no-requeue

# The controller starts one supervisor on each node, in an srun of its own, and plays the platform for them.
# Clients send it to the controller. One that comes before the controller has a handler must not end the job.
trap '' USR1
export PYTHONPATH='/shared/my libs'
exec /shared/venv/bin/python -m herringbone.controller digits-1 < /shared/me/.herringbone/jobs/digits-1/order.json
"""
    )


def test_a_job_without_settings_has_whole_nodes():
    lines = script(plan()).splitlines()
    assert {"#SBATCH --exclusive", "#SBATCH --mem=0", "#SBATCH --requeue"} <= set(lines)
    assert not any("cpus-per-task" in line or "gres" in line for line in lines)


@pytest.mark.parametrize("name", ["it's", 'a "b"', "$(touch owned)", "`touch owned`", "a;touch owned", "a\nb", "%j"])
def test_a_hostile_folder_is_one_word_for_the_shell(tmp_path, name):
    """Run the script with a program in Python's place that prints its arguments, its input and one variable."""
    folder = tmp_path / name
    folder.mkdir()
    (folder / "order.json").write_text("the config")
    python = tmp_path / "say"
    python.write_text('#!/bin/sh\necho "$@"; cat\nprintf \'%s\' "$PYTHONPATH"')
    python.chmod(0o700)
    context = ScriptContext(JobFolder(folder), str(python), {"PYTHONPATH": name})
    text = batch_script(plan(), context, grace=110.0)
    process = subprocess.run(["bash"], input=text, capture_output=True, text=True, cwd=tmp_path)
    assert process.stdout == f"-m herringbone.controller digits-1\nthe config{name}"
    assert not (tmp_path / "owned").exists()
    words = sbatch_words(JobFolder(folder))
    assert words[2] == f"--chdir={folder}"
    assert shlex.split(shlex.join(words)) == words


@pytest.mark.parametrize(
    "settings",
    [
        {"account": "a\n#SBATCH --uid=0"},
        {"account": "--uid=0"},
        {"qos": "a b"},
        {"gres": "gpu:1; rm -rf ~"},
        {"constraint": "$(id)"},
        {"constraint": "a'b"},
        {"memory": "64G --uid=0", "cpus": 1},
        {"memory": "64G"},
        {"cpus": 0},
        {"login": "-oProxyCommand=id"},
        {"login": "me@host id"},
    ],
)
def test_a_setting_that_is_not_a_plain_word_is_refused(settings):
    with pytest.raises(OptionError, match=rf"slurm(: |\.){next(iter(settings))}"):
        plan(slurm=settings)


def test_a_misspelt_setting_is_refused():
    with pytest.raises(OptionError, match="acount"):
        plan(slurm={"acount": "a"})


@pytest.mark.parametrize("partition", ["", "-p", "gpu;id", "a b", "a\nb"])
def test_a_malformed_partition_is_refused(partition):
    with pytest.raises(OptionError, match=r"not the name of a partition|control character"):
        partition_of(plan(f"slurm:{partition}"))


def test_a_job_has_one_partition():
    groups = [("train", "slurm:gpu", 2), ("help", "slurm:cpu", 1)]
    keys = ("instance_group_name", "instance_type", "instance_count")
    job_plan = plan(instance_groups=[dict(zip(keys, group, strict=True)) for group in groups])
    with pytest.raises(UnsupportedError, match="one partition, not slurm:gpu and slurm:cpu"):
        partition_of(job_plan)


@pytest.mark.parametrize(("max_run", "grace", "expected"), [(86_400, 110, 115), (60, 110, 30), (60, 5, 10)])
def test_hosts_get_sigterm_in_time(max_run, grace, expected):
    assert warning_seconds(max_run, grace) == expected


def test_the_config_contains_no_secret_and_no_variable_of_the_node():
    environ = {
        "PATH": "/bin",
        "WANDB_API_KEY": "secret",
        "SLURM_JOB_ID": "1",
        "SBATCH_PARTITION": "other",
        "CUDA_VISIBLE_DEVICES": "0",
        "TMPDIR": "/scratch/here",
        "HERRINGBONE_HOME": "/shared",
        "HERRINGBONE_HEARTBEAT": "2",
    }
    job_plan = plan(environment={"NAMED_KEY": "secret"}, max_retry_attempts=1)
    config = config_of(job_plan, HOME, environ, report=Path("/r.json"))
    steps = config["steps"]
    assert steps["environment"] == {"NAMED_KEY": "secret"}
    assert config["retries"] == 1
    assert {name: value for name, value in steps["variables"].items() if name in environ} == {
        "PATH": "/bin",
        "HERRINGBONE_HEARTBEAT": "2",
    }
    assert (config["max_run"], config["warning"]) == (86_400, 115.0)


def test_without_requeue_there_are_no_retries():
    config = config_of(plan(slurm={"requeue": False}), HOME, {}, report=Path("/r.json"))
    assert config["retries"] == 0
