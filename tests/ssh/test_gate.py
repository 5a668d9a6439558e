"""Tests of the requests that machines of a job take from each other, and of the secrets that no connection carries."""

import json

import msgspec
import pytest

from herringbone import Estimator, TrainingInput
from herringbone.backends.ssh.agent.host_config import HostConfig
from herringbone.backends.ssh.attempts.current import attempt_key
from herringbone.backends.ssh.keepers.gate import KeeperConfig, bare_start, check_request, complete_start
from herringbone_contract.errors import HostError, UnsupportedError

SECRET = "do not tell"  # noqa: S105 - no real one


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "hosts.yaml").write_text("hosts: [a, b]")
    options = {"environment": {"TOKEN": SECRET}, "max_retry_attempts": 2}
    plan = Estimator("train.py", instance_type="ssh:hosts.yaml", instance_count=2, **options).plan(None, "digits-1")
    base = HostConfig(
        plan=plan.to_send(),
        host="algo-2",
        control="tcp:a:7590",
        key=attempt_key("00ff", "digits-1"),
        code="c" * 64,
        data={},
        interface="eth0",
        machines={},
        settings={},
        permit=30.0,
    )
    return KeeperConfig(
        machine="b",
        machines={},
        addresses={},
        key="00ff",
        attempt={},
        base=base,
        shared=(),
        seconds=30.0,
        margin=15.0,
    )


def start_of(config, **changes):
    """Return what the holder sends for the second attempt, in which this machine plays the first and only host."""
    plan = {**config.base.plan, "job_name": "digits-1.2", "hosts": config.base.plan["hosts"][:1]}
    sent = msgspec.structs.replace(config.base, plan=plan, host="algo-1", control=None, checkpoints="d" * 64, spent=33)
    return {**bare_start(msgspec.to_builtins(sent)), **changes}


def test_no_secret_goes_over_the_connection_and_the_machine_adds_its_own(config):
    bare = start_of(config, control="tcp:b:7600")
    assert SECRET not in json.dumps(bare)
    assert config.key not in json.dumps(bare)
    host = complete_start(bare, config)
    assert host.plan["options"]["environment"]["TOKEN"] == SECRET
    assert (host.plan["job_name"], host.host, host.control) == ("digits-1.2", "algo-1", "tcp:b:7600")
    assert host.key == attempt_key(config.key, "digits-1.2") != config.base.key
    assert (host.code, host.permit, host.checkpoints, host.spent) == ("c" * 64, 30.0, "d" * 64, 33.0)
    assert complete_start(start_of(config), config).key is None


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "digits-2"},
        {"name": "digits-1.2/../../x"},
        {"name": "digits-1.02"},
        {"name": 7},
        {"checkpoints": "../../etc"},
        {"checkpoints": 7},
    ],
)
def test_another_jobs_start_is_refused(config, changes):
    with pytest.raises(HostError):
        complete_start(start_of(config, **changes), config)


@pytest.mark.parametrize(
    "message",
    [
        {"ask": "forget", "job": "digits-2"},
        {"ask": "kill", "job": "digits-1.2/x"},
        {"ask": "log", "job": ["digits-1"]},
        {"ask": "code", "digest": "c" * 64},
        {"ask": "load"},
        {"ask": "request", "job": "digits-1", "request": {}},
        {"ask": "jobs"},
        {"ask": "clean"},
        {"ask": "await_keeper"},
        {"ask": "missing", "code": "c" * 64, "data": ["../x"]},
        {"ask": "keep", "digest": "../../x"},
        {},
    ],
)
def test_requests_that_no_attempt_needs_are_refused(message):
    with pytest.raises(HostError):
        check_request(message, "digits-1")


@pytest.mark.parametrize(
    "message",
    [
        {"ask": "claim", "job": "digits-1"},
        {"ask": "kill", "job": "digits-1.12"},
        {"ask": "facts"},
        {"ask": "missing", "code": "c" * 64, "data": ["d" * 64]},
        {"ask": "keep", "digest": "d" * 64},
    ],
)
def test_requests_of_an_attempt_pass(message):
    check_request(message, "digits-1")


@pytest.mark.parametrize(
    ("inventory", "options", "inputs", "why"),
    [
        ("{hosts: [a, b], runtime: docker}", {"image_uri": "i"}, None, "its hosts are containers"),
        (
            "{hosts: [a, b]}",
            {},
            {"training": TrainingInput("data", distribution="ShardedByS3Key")},
            "a share of channel",
        ),
    ],
)
def test_a_job_whose_machines_lack_what_another_attempt_needs_is_refused(
    tmp_path, monkeypatch, inventory, options, inputs, why
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "data").mkdir()
    for name in "ab":
        (tmp_path / "data" / name).touch()
    (tmp_path / "hosts.yaml").write_text(inventory)
    asked = {"instance_type": "ssh:hosts.yaml", "instance_count": 2, "max_retry_attempts": 1, **options}
    plan = Estimator("train.py", retry_without_client=False, **asked).plan(inputs, "digits-1")
    assert why in plan.request["retried_by"]
    with pytest.raises(UnsupportedError, match=f"retry_without_client: the machines cannot .*{why}"):
        Estimator("train.py", retry_without_client=True, **asked).plan(inputs, "digits-1")
