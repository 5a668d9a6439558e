"""An examination ends in time, survives a defect, shows no secret, and needs no framework."""

import json
import os
import threading
import time
from pathlib import Path

import pytest

from herringbone.aws.credentials import credentials_source
from herringbone.cli.__main__ import main
from herringbone.doctor import Check, State, examine
from herringbone.doctor.examination import REQUIRED, SECONDS, standard

SECRET = "AKIAIOSFODNN7EXAMPLE"  # noqa: S105 - of AWS's documentation


def test_a_probe_that_hangs_becomes_a_check():
    release = threading.Event()

    def hang():
        release.wait(30)
        return Check("Docker", State.OK, "too late")

    begin = time.monotonic()
    subjects = {"disk": hang, "MPI": lambda: Check("MPI", State.OK, "5"), "Docker": hang}
    disk, mpi, docker = examine(examinations=subjects, seconds=0.1)
    release.set()
    assert time.monotonic() - begin < SECONDS
    assert (disk.name, disk.state, disk.required) == ("disk", State.MISSING, True)
    assert mpi.finding == "5"
    assert (docker.name, docker.state, docker.finding) == ("Docker", State.WARNING, "no answer within 0.1 s")
    assert "docker info" in docker.fix


def test_a_defect_of_one_probe_hides_no_other():
    def broken():
        raise ZeroDivisionError("division by zero")

    mpi, ports = examine(examinations={"MPI": broken, "ports": lambda: Check("ports", State.OK, "fine")})
    assert (mpi.state, mpi.finding) == (State.WARNING, "ZeroDivisionError: division by zero")
    assert ports.state is State.OK


def test_findings_lose_secrets_and_control_characters():
    def tell():
        return Check("Docker", State.WARNING, "tcp://me:hunter2@gpu:2375 \x1b[2J TOKEN=abc")

    (check,) = examine(examinations={"Docker": tell})
    assert check.finding == "tcp://me:******@gpu:2375 \\x1b[2J TOKEN=******"


def test_this_machine_is_examined_in_time_and_without_secrets(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", SECRET)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    begin = time.monotonic()
    code = main(["doctor", "--json"])
    # The time limit, and what the other processes of a busy machine take.
    assert time.monotonic() - begin < SECONDS + 3
    text = capsys.readouterr().out
    report = json.loads(text)
    assert SECRET not in text
    assert [check["name"] for check in report["checks"]] == list(standard(aws=False))
    assert {check["name"] for check in report["checks"] if check["required"]} == set(REQUIRED)
    assert (code, report["ready"]) == (0, True)
    assert Path(report["pages"], "index.md").is_file()
    # An examination creates nothing.
    assert os.listdir(tmp_path) == []


def test_a_home_that_cannot_be_written_exits_with_1(monkeypatch, capsys, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "file" / "home"))
    assert main(["doctor"]) == 1
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("disk"))
    assert f"you may not write {tmp_path}/file/home" in line
    assert line.endswith("set HERRINGBONE_HOME to a folder on another disk")


@pytest.mark.parametrize(
    ("environ", "profiles", "source"),
    [
        ({"AWS_ACCESS_KEY_ID": SECRET}, {}, "the environment"),
        ({"AWS_WEB_IDENTITY_TOKEN_FILE": "/x"}, {}, "a web identity"),
        ({}, {"default": {"aws_access_key_id": SECRET}}, "profile default"),
        ({"AWS_PROFILE": "a"}, {"a": {"sso_session": "s"}}, "profile a"),
        ({"AWS_PROFILE": "b"}, {"a": {"sso_session": "s"}}, None),
        ({"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/x"}, {}, "the container's role"),
        ({}, {"default": {"region": "eu-west-1"}}, None),
    ],
)
def test_credentials_are_found_without_asking_aws(environ, profiles, source):
    assert credentials_source(environ, profiles) == source


def test_a_machine_of_aws_may_have_a_role():
    assert credentials_source({}, {}, "Amazon EC2") == "the role of this machine of AWS"
    assert credentials_source({"AWS_ACCESS_KEY_ID": SECRET}, {}, "Amazon EC2") == "the environment"
