"""Jobs in real containers: one container per host, started as the container backend starts them."""

from __future__ import annotations

import json
import os
import tempfile
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.entrypoints.conftest import Ended, lay_tree, read_end

SOURCES = Path(__file__).resolve().parents[3]
LABEL = "dev.herringbone.test"
PORT = 7590


@dataclass
class ContainerJob:
    """A job of some hosts, each in a container that runs this checkout's supervisor as PID 1."""

    engine: Any
    image: str
    root: Path
    hosts: list[str]
    environment: dict[str, str]
    name: str = field(default_factory=lambda: f"hb-test-{uuid.uuid4().hex[:12]}")
    containers: dict[str, str] = field(default_factory=dict)
    stdins: dict[str, Any] = field(default_factory=dict)
    network: str | None = None
    mounts: list[str] = field(default_factory=list)

    def base(self, host: str = "algo-1") -> Path:
        return self.root / host / "ml"

    def write(self, script: str, *, groups: list[dict[str, Any]] | None = None, **hyperparameters: object) -> None:
        """Make the contract's tree of files for every host, without the name of a network interface."""
        for host in self.hosts:
            resources: dict[str, Any] = {"current_host": host, "hosts": sorted(self.hosts)}
            if groups is not None:
                group_of_host = next(group for group in groups if host in group["hosts"])
                resources |= {"instance_groups": groups, "current_group_name": group_of_host["instance_group_name"]}
                resources["current_instance_type"] = group_of_host["instance_type"]
            lay_tree(self.base(host), resources, {"sagemaker_program": "train.py", **hyperparameters})
            (self.base(host) / "code" / "train.py").write_text(textwrap.dedent(script))

    def start(self, *hosts: str, user: str | None = None, private: bool = True, **settings: Any) -> None:
        """Start these hosts, all by default; `settings` are the engine's own (`read_only=True`).

        Without `private` the supervisors wait for a line that does not come.
        """
        if self.network is None and len(self.hosts) > 1:
            self.network = self.engine.create_network(self.name, labels={LABEL: self.name})["Id"]
        for host in hosts or self.hosts:
            self._create(host, user, settings)
            if private:
                self._tell(host)
        for host in hosts or self.hosts:
            self.engine.start(self.containers[host])

    def _create(self, host: str, user: str | None, settings: dict[str, Any]) -> None:
        rooms = [f"{SOURCES / room}:/src/{room}:ro" for room in ("contract", "entrypoints", "parallel")]
        binds = [f"{self.base(host)}:/opt/ml", f"{self.root}:/shared", *rooms, *self.mounts]
        container = self.engine.create_container(
            self.image,
            ["python", "-m", "herringbone_entry"],
            name=f"{self.name}-{host}",
            hostname=host,
            user=user,
            stdin_open=True,
            labels={LABEL: self.name},
            environment={
                "TRAINING_JOB_NAME": self.name,
                "HERRINGBONE_PRIVATE_FD": "0",
                "PYTHONPATH": "/src/contract:/src/entrypoints:/src/parallel",
                "PYTHONDONTWRITEBYTECODE": "1",
                **({"HERRINGBONE_CONTROL": f"tcp:{self.hosts[0]}:{PORT}"} if self.network else {}),
            },
            host_config=self.engine.create_host_config(binds=binds, **settings),
            networking_config=self._endpoint(host),
        )
        self.containers[host] = container["Id"]
        self.stdins[host] = self.engine.attach_socket(container["Id"], params={"stdin": 1, "stream": 1})

    def _tell(self, host: str) -> None:
        private = {"environment": {"ROOT": "/shared", **self.environment}, "key": self.name.encode().hex()}
        self.stdins[host]._sock.sendall(json.dumps(private).encode() + b"\n")

    def _endpoint(self, host: str) -> dict[str, Any] | None:
        if self.network is None:
            return None
        return self.engine.create_networking_config({self.network: self.engine.create_endpoint_config(aliases=[host])})

    def hang_up(self, host: str) -> None:
        """Close the controller's end of a host's private line."""
        stdin = self.stdins.pop(host)
        # docker-py's file object would leave the connection open.
        stdin._sock.close()
        stdin.close()

    def give_to(self, uid: int) -> None:
        """Make a user of the containers the owner of the job's files; only root can change an owner."""
        for path in [self.root, *self.root.rglob("*")]:
            try:
                os.chown(path, uid, uid)
            except PermissionError:
                pytest.skip("needs root, to run containers as another user")

    def wait(self, *hosts: str, timeout: float = 30.0) -> dict[str, Ended]:
        """Wait for the hosts, all that were started by default, and return their results."""
        names = hosts or tuple(self.containers)
        # Wait for all ends at the same time: a test may measure the time of an end.
        with ThreadPoolExecutor(len(names)) as pool:
            return dict(zip(names, pool.map(lambda host: self._wait(host, timeout), names), strict=True))

    def _wait(self, host: str, timeout: float) -> Ended:
        code = self.engine.wait(self.containers[host], timeout=timeout)["StatusCode"]
        return read_end(self.base(host), code, self.engine.logs(self.containers[host]))

    def run(self, timeout: float = 30.0, **settings: Any) -> dict[str, Ended]:
        self.start(**settings)
        return self.wait(timeout=timeout)

    def seen(self, name: str, count: int = 1, timeout: float = 20.0) -> None:
        """Wait until the ranks have made that many files called `name*` in the job's root."""
        deadline = time.monotonic() + timeout
        while len(list(self.root.glob(f"{name}*"))) < count:
            assert time.monotonic() < deadline, [
                self.engine.logs(container_id) for container_id in self.containers.values()
            ]
            time.sleep(0.01)

    def clear(self) -> None:
        for host in list(self.stdins):
            self.hang_up(host)
        for container in self.containers.values():
            self.engine.remove_container(container, force=True, v=True)
        if self.network is not None:
            self.engine.remove_network(self.network)


@pytest.fixture
def make_job(engine: Any, image: str) -> Iterator[Callable[..., ContainerJob]]:
    """Make jobs; their containers and networks are removed at the end of the test."""
    jobs: list[ContainerJob] = []
    with tempfile.TemporaryDirectory(prefix="hb-test-") as folder:

        def make(hosts: int = 1, **environment: str) -> ContainerJob:
            root = Path(folder) / str(len(jobs))
            root.mkdir()
            names = [f"algo-{number}" for number in range(1, hosts + 1)]
            jobs.append(ContainerJob(engine, image, root, names, environment))
            return jobs[-1]

        yield make
        for job in jobs:
            job.clear()
