"""Supervisors in containers: the words for each runtime as literals, and a cluster with a stand-in for Apptainer.

Debian packages none of the runtimes. The stand-in accepts Apptainer's options and runs the command without a container,
so everything up to it is real, and the effect of an image is not tested.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

import herringbone_contract
import herringbone_entry
from herringbone.backends.slurm.containers import container_of, find_runtime, image_of, mounts_of
from herringbone.backends.slurm.controller_config import config_of
from herringbone.backends.slurm.script import ScriptContext, batch_script
from herringbone_contract.errors import InputError, OptionError, SlurmError, UnsupportedError
from tests.slurm.conftest import rank_lines
from tests.slurm.test_script import HOME, plan

CLEAN = [
    *("env", "-u", "PYTHONPATH", "-u", "PYTHONHOME", "-u", "LD_LIBRARY_PATH", "-u", "VIRTUAL_ENV"),
    *("-u", "CONDA_PREFIX", "PYTHONNOUSERSITE=1"),
]
MOUNTS = [("/shared/jobs/a", True), ("/data", False)]


def test_pyxis_adds_options_of_srun():
    container = container_of("pyxis", "registry.local#team/image:1", MOUNTS, names=["A"], gpus=True)
    assert container.srun == [
        "--container-image=registry.local#team/image:1",
        "--container-mounts=/shared/jobs/a:/shared/jobs/a,/data:/data:ro",
    ]
    assert container.argv == [*CLEAN, "train"]


def test_apptainer_runs_files_and_registry_names():
    container = container_of("apptainer", "/images/a.sif", MOUNTS, names=["A"], gpus=True)
    binds = ["--bind", "/shared/jobs/a:/shared/jobs/a", "--bind", "/data:/data:ro"]
    assert container == ([], [*CLEAN, "apptainer", "exec", *binds, "--nv", "/images/a.sif", "train"])
    container = container_of("singularity", "team/image:1", [], names=[], gpus=False)
    assert container.argv == [*CLEAN, "singularity", "exec", "docker://team/image:1", "train"]
    assert container_of("apptainer", "oras://r/i:1", [], names=[], gpus=False).argv[-2] == "oras://r/i:1"


def test_enroot_gets_each_variable_by_name_and_starts_only_files():
    container = container_of("enroot", "/images/a.sqsh", MOUNTS[1:], names=["A", "SLURM_JOB_ID"], gpus=False)
    names = ["A", "SLURM_JOB_ID", "SLURMD_NODENAME", "SLURM_RESTART_COUNT", "CUDA_VISIBLE_DEVICES", "PYTHONNOUSERSITE"]
    options = [word for name in names for word in ("--env", name)]
    mount = ["--mount", "/data:/data:none:x-create=auto,bind,ro"]
    assert container.argv == [*CLEAN, "enroot", "start", *options, *mount, "/images/a.sqsh", "train"]
    with pytest.raises(UnsupportedError, match=r"enroot import docker://team/image:1"):
        container_of("enroot", "team/image:1", [], names=[], gpus=False)


def test_paths_that_cannot_be_mounted_and_malformed_images_are_refused():
    with pytest.raises(InputError, match="/a:b cannot be mounted"):
        container_of("apptainer", "/a.sif", [("/a:b", True)], names=[], gpus=False)
    for name in ("--bind=/etc", "a b"):
        with pytest.raises(OptionError, match="begins with a hyphen or has a blank"):
            plan(image_uri=name)
    for name in ("a,b", "a;b", "$(id)"):
        with pytest.raises(InputError, match="is not an image"):
            image_of(plan(image_uri=name))
    with pytest.raises(InputError, match=r"/no/such.sif: no such file"):
        image_of(plan(image_uri="/no/such.sif"))


class Login:
    """A login node that has some programs."""

    where = "the login node"

    def __init__(self, *programs: str, srun: str = "") -> None:
        self._programs, self._srun = programs, srun

    def ask(self, *words: str) -> str:
        if words[0] == "srun":
            return self._srun
        if words[0] not in self._programs:
            raise SlurmError("not there")
        return "1.0"


def test_the_runtime_is_found_on_the_login_node():
    assert find_runtime(Login("apptainer", srun="  --container-image=[USER@][REGISTRY#]IMAGE")) == "pyxis"
    assert find_runtime(Login("apptainer", "enroot")) == "apptainer"
    assert find_runtime(Login("singularity")) == "singularity"
    assert find_runtime(Login("enroot")) == "enroot"
    with pytest.raises(UnsupportedError, match="has neither pyxis nor Apptainer, Singularity or enroot"):
        find_runtime(Login())


def test_the_config_of_a_job_in_an_image():
    job_plan = plan(image_uri="team/image:1", slurm={"gres": "gpu:2", "container_runtime": "apptainer"})
    environ = {"PATH": "/bin", "PYTHONPATH": "/mine", "LD_LIBRARY_PATH": "/libs"}
    config = config_of(job_plan, HOME, environ, report=Path("/r.json"), runtime="apptainer")
    job = f"{HOME.path}/jobs/digits-1"
    expected = ["apptainer", "exec", "--bind", f"{job}:{job}", "--nv", "docker://team/image:1", "train"]
    assert config["steps"]["argv"] == [*CLEAN, *expected]
    assert "PYTHONPATH" not in config["steps"]["variables"]
    assert mounts_of(job_plan, HOME) == [(job, True)]
    text = batch_script(job_plan, ScriptContext(HOME.job("digits-1"), "python", {}), grace=110.0, runtime="apptainer")
    assert "\n# It does so in team/image:1, by apptainer.\n" in text


STAND_IN = """\
#!{python}
# Stands in for Apptainer: `exec [--bind A:B] [--nv] IMAGE COMMAND...`, run without a container.
import json, os, sys
if sys.argv[1:] == ["--version"]:
    sys.exit(print("apptainer version 0"))
words = sys.argv[2:]
binds = []
while words[0].startswith("--"):
    option = words.pop(0)
    if option == "--bind":
        binds.append(words.pop(0))
image = words.pop(0)
with open("{seen}", "a") as file:
    print(json.dumps([os.environ["SLURMD_NODENAME"], image, binds, "PYTHONPATH" in os.environ]), file=file)
os.environ["PATH"] = "{inside}"
os.execvp(words[0], words)
"""


@pytest.mark.slurm
def test_each_supervisor_starts_in_the_image(submit, home, cluster, tmp_path, monkeypatch):
    (tmp_path / "inside").mkdir()
    train = tmp_path / "inside" / "train"
    roots = [str(Path(str(package.__file__)).parents[1]) for package in (herringbone_contract, herringbone_entry)]
    train.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path[:0] = {roots}\nfrom herringbone_entry.__main__ import main\nmain()\n"
    )
    programs, seen, image = tmp_path / "programs", tmp_path / "seen", tmp_path / "image.sif"
    programs.mkdir()
    stand_in = programs / "apptainer"
    stand_in.write_text(
        STAND_IN.format(python=sys.executable, seen=seen, inside=f"{train.parent}:/usr/local/bin:/usr/bin:/bin")
    )
    for path in (train, stand_in):
        path.chmod(0o755)
    image.touch()
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    job = submit("import os; print('rank', os.environ['RANK'])", instance_count=2, image_uri=str(image))
    assert job.wait(timeout=60).status == "Completed", job.failure
    assert sorted(rank_lines(job)) == ["rank 0", "rank 1"]
    folder = home.job(job.name).path
    nodes = [json.loads(line) for line in seen.read_text().splitlines()]
    assert sorted(node[0] for node in nodes) == sorted({node[0] for node in nodes})
    assert [node[1:] for node in nodes] == [[str(image), [f"{folder}:{folder}"], False]] * 2


@pytest.mark.slurm
def test_a_runtime_without_an_image_is_refused(submit):
    with pytest.raises(OptionError, match="container_runtime goes with image_uri"):
        submit("pass", slurm={"cpus": 1, "container_runtime": "pyxis"})
