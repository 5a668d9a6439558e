"""Tests of ssh jobs in containers: each machine has an engine of its own, on its own network."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from herringbone import Estimator, TrainingJob
from herringbone.api.planning import plan_request
from herringbone.backends.ssh.backend import SshBackend
from herringbone.backends.ssh.inspection.check import check
from herringbone.backends.ssh.machines.inventory import parse_inventory
from herringbone.engine.client import Engine
from herringbone.engine.locate import find_engine
from herringbone_contract.errors import HostError, ImageError

from .conftest import await_silence, expect, members
from .small_image import make_small_image

pytestmark = [pytest.mark.ssh, pytest.mark.docker]

# A name per process: two runs of these tests at once must not remove each other's image.
IMAGE = f"herringbone-tests/small:{os.getpid()}"
NAMES = ("h-1", "h-2")
SHOW = """
import os, socket
print("rank", os.environ["RANK"], "of", os.environ["SM_CURRENT_HOST"], "sees", os.path.exists("/.dockerenv"))
print("data", sorted(os.listdir("/opt/ml/input/data/training")), os.environ.get("WANDB_API_KEY"))
address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if os.environ["RANK"] == "0":
    print("heard", socket.create_server(address).accept()[0].recv(9))
else:
    while True:
        try:
            socket.create_connection(address).sendall(b"across")
            break
        except ConnectionRefusedError:
            pass
open("/opt/ml/model/part-" + os.environ["RANK"], "w").write("weights")
"""
WAIT = "import time\nprint('waits', flush=True)\ntime.sleep(600)"


class Counting(Engine):
    """An engine that counts how often an image was read from it."""

    saved = 0

    def save(self, image: str) -> Iterator[bytes]:
        self.saved += 1
        return super().save(image)


@pytest.fixture(scope="module")
def engines(machines) -> Iterator[dict[str, Engine]]:
    with machines.engines(NAMES) as addresses:
        yield {name: Engine(address) for name, address in addresses.items()}


@pytest.fixture(scope="module")
def small_image(engine: Any) -> Iterator[str]:
    make_small_image(engine, IMAGE)
    yield IMAGE
    engine.remove_image(IMAGE)


@pytest.fixture
def client_engine() -> Counting:
    """The engine of the machine that submits the job."""
    return Counting(find_engine(os.environ, Path.home()).address)


@pytest.fixture
def submit(home, transport, machines, engines, client_engine, small_image) -> Iterator[Callable[..., TrainingJob]]:
    """A function that submits a script to the machines with engines; at the end nothing of a job may remain there."""
    backend = SshBackend(home, transport, environ={"HERRINGBONE_HEARTBEAT": "1"}, find=lambda: client_engine)

    def start(script: str, inputs: Any = None, *, names: Sequence[str] = NAMES, **changes: Any) -> TrainingJob:
        hosts = [host for host in machines.inventory()["hosts"] if host["name"] in names]
        Path("hosts.yaml").write_text(yaml.safe_dump({**machines.inventory(), "hosts": hosts, "runtime": "docker"}))
        Path("train.py").write_text(script)
        options = {"instance_type": "ssh:hosts.yaml", "instance_count": 2, "image_uri": small_image, **changes}
        return TrainingJob.submit(plan_request(Estimator("train.py", **options)._asked(inputs), backend), backend)

    yield start
    for name, engine in engines.items():
        assert await_silence(machines, name) == []
        assert engine.get("/containers/json", all=True) == []


def test_hosts_are_containers_and_an_image_is_sent_once(submit, client_engine, engines, machines, capsys):
    Path("data").mkdir()
    Path("data", "x.txt").write_text("data")
    first = submit(SHOW, "data", environment={"WANDB_API_KEY": "top-secret"})
    assert first.wait().status == "Completed", first.failure
    lines = [line.text for line in first.logs() if line.rank is not None]
    assert [f"rank {rank} of algo-{rank + 1} sees True" in lines for rank in (0, 1)] == [True, True]
    assert lines.count("data ['x.txt'] top-secret") == 2
    assert "heard b'across'" in lines
    assert members(first.model_data) == ["part-0", "part-1"]
    # Files that a container writes belong to the user who logs in.
    for number, name in enumerate(NAMES, 1):
        (written,) = machines.work(name).glob(f"jobs/{first.name}/hosts/algo-{number}/ml/model/part-*")
        assert written.stat().st_uid == os.getuid()
    images = {name: engine.get("/images/json")[0]["Id"] for name, engine in engines.items()}
    assert client_engine.saved == len(NAMES)
    assert f"sending image {IMAGE} (0.1 GB) to h-1, h-2, once" in capsys.readouterr().err
    client_engine.saved = 0
    second = submit(SHOW, "data")
    assert second.wait().status == "Completed", second.failure
    assert client_engine.saved == 0
    assert {name: engine.get("/images/json")[0]["Id"] for name, engine in engines.items()} == images


def test_a_stop_and_a_failure_leave_no_container(submit, engines):
    job = submit(WAIT)
    expect(job, "waits", "waits")
    assert [len(engine.get("/containers/json")) for engine in engines.values()] == [1, 1]
    job.stop()
    assert job.wait().status == "Stopped"
    assert [engine.get("/containers/json", all=True) for engine in engines.values()] == [[], []]
    job = submit("import os, time\nif os.environ['RANK'] == '1': raise ValueError('no luck')\ntime.sleep(600)")
    assert job.wait().status == "Failed"
    assert job.failure.render().startswith("rank 1 on algo-2: ValueError: no luck")


def test_a_container_whose_controller_is_killed_ends_and_is_removed(submit, machines, engines):
    job = submit(WAIT)
    expect(job, "waits", "waits")
    for pid in machines.pids("h-2", "-m herringbone.controller"):
        os.kill(pid, signal.SIGKILL)
    assert job.wait().status == "Failed"
    assert "the process that watched the job was killed" in job.failure.render()


def test_without_an_engine_or_an_image_nothing_starts(submit):
    with pytest.raises(HostError, match="h-3: no container engine answers"):
        submit(WAIT, names=("h-3",), instance_count=1)
    with pytest.raises(
        ImageError, match="image_uri: no machine has 'no-such-image:7', and this machine cannot send it"
    ):
        submit(WAIT, image_uri="no-such-image:7")


def test_a_check_names_the_machine_without_an_engine(machines, engines, transport):
    inventory = parse_inventory({**machines.inventory(), "runtime": "docker"}, "hosts.yaml")
    report = check(inventory, transport, seconds=0.1)
    assert report.problems == ["h-3: no container engine answers there, and its runtime is docker"]
    assert [machine.docker for machine in report.machines] == [
        *(engine.get("/version")["Version"] for engine in engines.values()),
        None,
    ]
