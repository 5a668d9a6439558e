"""Helper hosts of a job on `ml.*`: the hosts start as the service starts them, with nothing but its contract."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from herringbone import InstanceGroup
from tests.e2e.sagemaker_platform import Platform, submitted
from tests.e2e.test_helpers import SCRIPT, check, train
from tests.sagemaker.account import REGION

pytestmark = [pytest.mark.e2e, pytest.mark.docker]

WORKERS = ("algo-1", "algo-2")
HELPER = "algo-3"
HOSTS = (*WORKERS, HELPER)


class Job:
    """Starts the containers of one job, by the names of its hosts."""

    def __init__(self, platform: Platform, folder: Path) -> None:
        self.platform, self.folder = platform, folder
        self.containers = {
            host: platform.start(folder / host, folder / "checkpoints", host=host, hosts=HOSTS) for host in HOSTS
        }

    def lines(self, host: str) -> list[str]:
        """Return the lines that a host's container printed, without the names of ranks."""
        return [re.sub(r"^\[[\w:-]+\] ", "", line) for line in self.platform.log(self.containers[host]).splitlines()]

    def codes(self) -> dict[str, int]:
        return {host: self.platform.end(container) for host, container in self.containers.items()}

    def failure(self, host: str) -> str:
        return (self.folder / host / "output" / "failure").read_text()


@pytest.fixture
def start(engine: Any, image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yield a function that starts a job of two workers and a helper on its own network. The script reads `mood`."""
    network = engine.create_network(f"hb-test-{uuid.uuid4().hex[:12]}")["Id"]
    stack = ExitStack()
    stack.callback(engine.remove_network, network)

    def begin(mood: str = "") -> Job:
        folder = tmp_path / "job"
        (folder / "src").mkdir(parents=True)
        (folder / "src" / "train.py").write_text(SCRIPT)
        platform = submitted(
            engine,
            image,
            folder,
            monkeypatch,
            network=network,
            entry_point="train.py",
            source_dir=str(folder / "src"),
            image_uri=f"999999999999.dkr.ecr.{REGION}.amazonaws.com/herringbone/pytorch:1",
            instance_type=None,
            instance_groups=[InstanceGroup("gpu", "ml.g5.xlarge", 2), InstanceGroup("cpu", "ml.c5n.4xlarge", 1)],
            distribution={"smdistributed": {"dataparallel": {"enabled": True, "helpers": "cpu"}}},
            environment={"MOOD": mood} if mood else {},
        )
        return Job(stack.enter_context(platform), folder)

    with stack:
        yield begin


def digests(lines: list[str]) -> set[str]:
    return {line.split()[-1] for line in lines if line.startswith("digest ")}


def test_the_helper_sums_and_weights_equal_those_of_processes(start: Any, tmp_path: Path) -> None:
    job = start()
    codes = job.codes()
    logs = {host: job.lines(host) for host in HOSTS}
    assert codes == dict.fromkeys(HOSTS, 0), logs
    lines = [line for log in logs.values() for line in log]
    check(lines, 2, 1)
    assert [host for host in HOSTS if any(line.startswith('{"host"') for line in logs[host])] == [HELPER]
    resources = json.loads((job.folder / HELPER / "input" / "config" / "resourceconfig.json").read_text())
    assert resources["current_group_name"] == "cpu"
    (tmp_path / "processes").mkdir()
    assert digests(lines) == digests(train(tmp_path / "processes", "local_process", 2, 1))


def test_every_host_names_a_killed_helper(start: Any) -> None:
    job = start("long")
    job.platform.until(job.containers["algo-1"], "far enough")
    job.platform.kill(job.containers[HELPER])
    began = time.monotonic()
    codes = job.codes()
    assert time.monotonic() - began < 10.0
    assert codes[HELPER] == 137
    for host in WORKERS:
        assert codes[host] not in (0, 137)
        assert HELPER in job.failure(host), job.failure(host)
