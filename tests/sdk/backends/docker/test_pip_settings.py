"""pip in a container gets the settings of the submitting machine, and nobody else there does."""

import json

import pytest

from herringbone import PyTorch
from herringbone.backends.docker.backend import DockerBackend
from herringbone.backends.docker.tree import Mount
from herringbone.images.pip_settings import PipFiles, pip_files, start_variables
from herringbone.records.home import Home
from herringbone_contract.paths import Paths

TOKEN = "https://me:hunter2@pypi.example.com/simple"  # noqa: S105


@pytest.fixture
def environ(tmp_path):
    (tmp_path / "ca.pem").touch()
    (tmp_path / "wheels").mkdir()
    (tmp_path / "docker").mkdir()
    settings = {"proxies": {"default": {"httpsProxy": "http://proxy:3128"}}}
    (tmp_path / "docker" / "config.json").write_text(json.dumps(settings))
    return {
        "PIP_CERT": str(tmp_path / "ca.pem"),
        "PIP_FIND_LINKS": str(tmp_path / "wheels"),
        "PIP_INDEX_URL": TOKEN,
        "PIP_EXTRA_INDEX_URL": "file:///srv/pypi",
        "DOCKER_CONFIG": str(tmp_path / "docker"),
        "HF_TOKEN": "hunter2",
    }


def submitted(environ, tmp_path, *, requirements):
    """Return the private line of a job, and the mounts for pip of its host."""
    (tmp_path / "train.py").touch()
    estimator = PyTorch(str(tmp_path / "train.py"), instance_type="local_process", environment={"PIP_RETRIES": "9"})
    plan = estimator.plan()
    backend = DockerBackend(Home(tmp_path / "home"), lambda: None, environ=environ)
    code = Paths(Home(tmp_path / "home").job(plan.job_name).host("algo-1")).code
    code.mkdir(parents=True)
    if requirements:
        (code / "requirements.txt").touch()
    return json.loads(backend._private_line(plan)), backend._pip_mounts(plan, plan.hosts[0])


def test_settings_travel_on_the_private_line_and_files_as_mounts(environ, tmp_path):
    line, mounts = submitted(environ, tmp_path, requirements=True)
    assert mounts == [
        Mount(environ["PIP_CERT"], "/opt/herringbone-pip/ca.pem", read_only=True),
        Mount(environ["PIP_FIND_LINKS"], "/opt/herringbone-pip/wheels", read_only=True),
    ]
    pip = json.loads(line["environment"].pop("HERRINGBONE_PIP"))
    assert pip == {
        "https_proxy": "http://proxy:3128",
        "HTTPS_PROXY": "http://proxy:3128",
        "PIP_INDEX_URL": TOKEN,
        "PIP_CERT": "/opt/herringbone-pip/ca.pem",
        "PIP_FIND_LINKS": "/opt/herringbone-pip/wheels",
    }
    # The script's own environment has none of them.
    assert line["environment"] == {"PIP_RETRIES": "9"}


def test_a_job_without_requirements_mounts_nothing(environ, tmp_path):
    assert submitted(environ, tmp_path, requirements=False)[1] == []


def test_a_certificate_that_requests_trusts_is_one_that_pip_trusts(tmp_path):
    (tmp_path / "ca.pem").touch()
    files = pip_files({"PIP_CERT": str(tmp_path / "gone.pem"), "REQUESTS_CA_BUNDLE": str(tmp_path / "ca.pem")})
    assert start_variables({}, {}, files) == {"PIP_CERT": "/opt/herringbone-pip/ca.pem"}


def test_files_that_are_not_there_are_left_out(tmp_path):
    files = pip_files({"PIP_CERT": str(tmp_path / "gone.pem"), "PIP_FIND_LINKS": "https://example.com/wheels"})
    assert files == PipFiles(None, None)
    assert start_variables({}, {}, files) == {}
