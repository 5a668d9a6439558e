"""Secrets of the user: in no plan, no row, no argument vector, no image and no message."""

import json
import os
import stat
import subprocess

import pytest

from herringbone import Estimator
from herringbone.code.git import fetch_code
from herringbone.code.secret_files import looks_secret
from herringbone.engine.client import EngineRefusal
from herringbone.images import bake as bake_module
from herringbone.images.bake import bake
from herringbone.images.pip_settings import setting_lines
from herringbone.plan.git import GitConfig
from herringbone.plan.plan import parse_plan
from herringbone.records.home import Home
from herringbone_contract.errors import DistributionError, HyperparameterError, InputError

SECRET = "hunter2"  # noqa: S105 - of no service
GIVEN = {
    "hyperparameters": {
        "token": SECRET,
        "db": {"password": SECRET, "hosts": [{"api_key": SECRET}]},
        "address": f"postgres://me:{SECRET}@db/x",
        "epochs": 3,
    },
    "environment": {"HF_TOKEN": SECRET, "CONFIG": f"redis://:{SECRET}@host"},
    "container_arguments": ["--api-key", SECRET, f"--password={SECRET}", "--lr", "3"],
    "base_job_name": "digits",
}


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "run.sh").touch()
    (tmp_path / "data").mkdir()


def test_no_secret_is_in_a_plan_and_the_rest_is(script):
    plan = Estimator("train.py", instance_type="ml.m5.large", image_uri="i:1", **GIVEN).plan("s3://bucket/x")
    for text in (str(plan), json.dumps(plan.to_dict())):
        assert SECRET not in text
        assert "postgres://me:******@db/x" in text
    stored = plan.to_dict()
    assert stored["options"]["container_arguments"] == ["--api-key", "******", "--password=******", "--lr", "3"]
    # A stored plan is read again.
    assert parse_plan(stored).to_dict() == stored
    # The job itself gets the secrets.
    assert json.loads(plan.hyperparameters["db"])["password"] == SECRET


@pytest.mark.parametrize(
    "distribution",
    [
        {"mpi": {"enabled": True, "custom_mpi_options": f"-x API_KEY={SECRET}"}},
        {"mpi": {"enabled": True, "custom_mpi_options": f"-x DB=postgres://me:{SECRET}@db"}},
        {"smdistributed": {"dataparallel": {"enabled": True, "custom_mpi_options": f"-x HF_TOKEN={SECRET}"}}},
    ],
)
def test_no_secret_becomes_an_argument_of_mpirun(script, distribution):
    estimator = Estimator("train.py", instance_type="local_process", instance_count=2, distribution=distribution)
    with pytest.raises(DistributionError, match="an argument of mpirun; give it in environment") as caught:
        estimator.plan()
    assert SECRET not in str(caught.value)


def test_no_secret_becomes_an_argument_of_a_shell_script(script):
    estimator = Estimator("run.sh", instance_type="local_process", hyperparameters=GIVEN["hyperparameters"])
    with pytest.raises(HyperparameterError, match=r"token, db, address: a secret, .* an argument of run.sh") as caught:
        estimator.plan()
    assert SECRET not in str(caught.value)
    Estimator("run.sh", instance_type="local_process", hyperparameters={"epochs": 3, "max_tokens": 5}).plan()


def test_a_home_that_others_can_list_shows_them_nothing(tmp_path):
    """An existing home with mode 0755 left the index, with all plans and failures, readable by everybody."""
    home = Home(tmp_path / "home")
    (home.path / "jobs").mkdir(parents=True)
    home.index.touch(mode=0o644)
    home.path.chmod(0o755)
    home.make()
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in home.path.iterdir()}
    assert modes == {"jobs": 0o700, "cache": 0o700, "index.sqlite": 0o600}
    assert stat.S_IMODE(home.path.stat().st_mode) == 0o755


def test_git_repeats_no_part_of_a_secret(tmp_path, monkeypatch):
    """The message was cut to its last 500 characters first, and half of a token is not recognised."""
    program = tmp_path / "bin" / "git"
    program.parent.mkdir()
    token = "s3cr3t/" * 20
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    for filler in range(440, 500, 7):
        text = f"fatal: {token} https://x:{token.replace('/', '%2F')}@h " + "x" * filler
        program.write_text(f"#!/bin/sh\nif [ \"$5\" = init ]; then exit 0; fi\necho '{text}' >&2; exit 1\n")
        program.chmod(0o755)
        (tmp_path / str(filler)).mkdir()
        with pytest.raises(InputError) as caught:
            fetch_code(GitConfig("https://h/r", token=token), tmp_path / str(filler))
        assert "s3cr3t" not in str(caught.value)
        assert "3t/s" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        *((name, True) for name in (".ENV", "ID_RSA", ".Netrc", "KEY.P12", ".AWS/Credentials")),
        *((name, False) for name in (".ENV.EXAMPLE", ".Env.Sample", "Train.py")),
    ],
)
def test_case_does_not_hide_a_secret_file(tmp_path, name, secret):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    # An example may show what a key looks like, however its name is written.
    path.write_text("-----BEGIN PRIVATE KEY-----" if "E" in name and "xample" in name.lower() else "x")
    assert looks_secret(path) is secret


class BakingEngine:
    """An engine that keeps what it is asked for; its container ends at once."""

    def __init__(self):
        self.description, self.files, self.images = None, b"", {"i:1"}

    def post(self, path, body=None, **query):
        if path == "/containers/create":
            self.description = body
            return {"Id": "c"}
        if path == "/commit":
            self.images.add(f"{query['repo']}:{query['tag']}")
        return {"StatusCode": 0}

    def get(self, path, **query):
        if path.startswith("/images/") and path.removeprefix("/images/").removesuffix("/json") not in self.images:
            raise EngineRefusal(404, "no such image")
        return {"Id": "i", "Size": 1, "Config": {"Labels": {}}, "RepoTags": ["i:1"]}

    def upload(self, container, folder, fill):
        pieces = []
        fill(pieces.append)
        self.files = b"".join(pieces)

    def logs(self, container, follow=False):
        return iter(())

    def delete(self, path, **query):
        pass


def test_a_baked_image_keeps_no_proxy(tmp_path, monkeypatch):
    """The proxies of Docker's settings, often with a password, were variables of the container that is committed."""
    proxies = {"http_proxy": f"http://me:{SECRET}$(touch {tmp_path}/ran)@proxy", "HTTP_PROXY": "x y"}
    settings = {"proxies": {"default": {"httpProxy": proxies["http_proxy"]}}}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    (tmp_path / "requirements.txt").write_text("x==1\n")
    engine = BakingEngine()
    bake(engine, "i:1", tmp_path / "requirements.txt", print)
    assert SECRET not in json.dumps(engine.description)
    assert SECRET.encode() in engine.files
    # The script makes variables of them, whatever they contain, and nothing else.
    (tmp_path / "settings").write_bytes(setting_lines(proxies))
    (line,) = [line for line in bake_module._INSTALL.splitlines() if line.startswith("while ")]
    script = f'{line}\nprintf %s "$http_proxy|$HTTP_PROXY"'
    run = subprocess.run(["/bin/sh", "-euc", script], cwd=tmp_path, capture_output=True, check=True)
    assert run.stdout.decode() == "|".join(proxies.values())
    assert not (tmp_path / "ran").exists()
