"""A stand-in for SageMaker that runs a job of the mock: containers, channels, `/opt/ml`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from herringbone.aws.location import parse_s3_uri
from tests.aws_mock import mock_aws
from tests.sagemaker.account import REGION, RequestRecorder, described, estimator, make_role


class Platform:
    """Runs each host of a request in a container, on this machine's network or on a network of the job.

    >>> container = platform.start(tmp_path / "one", tmp_path / "checkpoints")      # doctest: +SKIP
    >>> platform.end(container), platform.log(container)                            # doctest: +SKIP

    `environment` has the variables that the service adds to the request's. `s3` is the client that fetches channels.
    `network` is the id of the job's network, None for this machine's.
    """

    def __init__(
        self,
        engine: Any,
        image: str,
        request: dict[str, Any],
        environment: dict[str, str],
        s3: Any = None,
        network: str | None = None,
    ) -> None:
        self._engine, self._image, self._request, self._environment = engine, image, request, environment
        self._s3, self._network = s3, network
        self._containers: list[str] = []

    def start(self, base: Path, checkpoints: Path, *, host: str = "algo-1", hosts: Sequence[str] = ("algo-1",)) -> str:
        config = base / "input" / "config"
        config.mkdir(parents=True)
        checkpoints.mkdir(exist_ok=True)
        group = self._group(host, hosts)
        channels = self._channels(group.get("current_group_name"))
        described = {channel["ChannelName"]: {"TrainingInputMode": "File"} for channel in channels}
        interface = "eth0" if self._network else "lo"
        resources = {"current_host": host, "hosts": list(hosts), "network_interface_name": interface, **group}
        (config / "hyperparameters.json").write_text(json.dumps(self._request["HyperParameters"]))
        (config / "inputdataconfig.json").write_text(json.dumps(described))
        (config / "resourceconfig.json").write_text(json.dumps(resources))
        for channel in channels:
            self._fetch(
                channel["DataSource"]["S3DataSource"]["S3Uri"], base / "input" / "data" / channel["ChannelName"]
            )
        return self._run([f"{base}:/opt/ml", f"{checkpoints}:/opt/ml/checkpoints"], host, hosts)

    def _run(self, binds: list[str], host: str, hosts: Sequence[str]) -> str:
        engine = self._engine
        if self._network:
            networking = engine.create_networking_config({self._network: engine.create_endpoint_config(aliases=[host])})
            host_options: dict[str, Any] = {}
        else:
            networking = None
            host_options = {"network_mode": "host", "extra_hosts": dict.fromkeys(hosts, "127.0.0.1")}
        container = engine.create_container(
            self._image,
            "train",
            hostname=None if networking is None else host,
            environment={**self._request["Environment"], **self._environment},
            host_config=engine.create_host_config(binds=binds, **host_options),
            networking_config=networking,
        )
        engine.start(container["Id"])
        self._containers.append(container["Id"])
        return str(container["Id"])

    def _group(self, host: str, hosts: Sequence[str]) -> dict[str, Any]:
        """Return the instance groups of resourceconfig.json. Each group takes the next hosts of the list."""
        unassigned, groups, current = list(hosts), [], {}
        for group in self._request["ResourceConfig"].get("InstanceGroups", ()):
            members, unassigned = unassigned[: group["InstanceCount"]], unassigned[group["InstanceCount"] :]
            name, instance_type = group["InstanceGroupName"], group["InstanceType"]
            groups.append({"instance_group_name": name, "instance_type": instance_type, "hosts": members})
            if host in members:
                current = {"current_group_name": name, "current_instance_type": instance_type}
        return {**current, "instance_groups": groups} if groups else {}

    def _channels(self, group: str | None) -> list[dict[str, Any]]:
        """Return the channels that the hosts of a group get."""
        channels = self._request.get("InputDataConfig", [])
        sources = [(channel, channel["DataSource"]["S3DataSource"]) for channel in channels]
        return [channel for channel, source in sources if group in source.get("InstanceGroupNames", [group])]

    def _fetch(self, address: str, folder: Path) -> None:
        """Copy the objects below an S3 address to the folder of their channel."""
        bucket, prefix = parse_s3_uri(address)
        for entry in self._s3.list_objects_v2(Bucket=bucket, Prefix=prefix)["Contents"]:
            path = folder / entry["Key"].removeprefix(f"{prefix}/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self._s3.get_object(Bucket=bucket, Key=entry["Key"])["Body"].read())

    def log(self, container: str) -> str:
        return str(self._engine.logs(container).decode())

    def until(self, container: str, text: str) -> None:
        deadline = time.monotonic() + 120
        while text not in self.log(container):
            assert time.monotonic() < deadline, self.log(container)
            time.sleep(0.02)

    def interrupt(self, container: str) -> None:
        self._engine.stop(container, timeout=60)

    def kill(self, container: str) -> None:
        self._engine.kill(container)

    def end(self, container: str) -> int:
        return int(self._engine.wait(container, timeout=180)["StatusCode"])

    def clear(self) -> None:
        for container in self._containers:
            self._engine.remove_container(container, force=True, v=True)


@contextmanager
def submitted(
    engine: Any,
    image: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    network: str | None = None,
    **arguments: Any,
) -> Iterator[Platform]:
    """Submit an estimator's job to a mock of AWS, as for any job, and yield the platform that runs it.

    Hosts on a `network` of their own reach the mock at the address that this machine has there.
    """
    mock_address = "127.0.0.1" if network is None else engine.inspect_network(network)["IPAM"]["Config"][0]["Gateway"]
    with mock_aws(folder / "aws.log", mock_address) as address:
        nothing = str(folder / "no-such-file")
        variables = {"AWS_ACCESS_KEY_ID": "mock", "AWS_SECRET_ACCESS_KEY": "mock", "AWS_DEFAULT_REGION": REGION}
        isolation = {"AWS_ENDPOINT_URL": address, "AWS_CONFIG_FILE": nothing, "AWS_SHARED_CREDENTIALS_FILE": nothing}
        for name, value in {**variables, **isolation, "HERRINGBONE_HOME": str(folder / "home")}.items():
            monkeypatch.setenv(name, value)
        recorder = RequestRecorder()
        make_role(recorder.boto)
        job = estimator(recorder, **arguments).fit(wait=False)
        assert job.plan.request is not None
        # The mock does not store the environment, so take it from the plan.
        request = {"Environment": job.plan.request["Environment"], **described(recorder.boto, job.name)}
        environment = {**variables, "AWS_ENDPOINT_URL_S3": address}
        platform = Platform(engine, image, request, environment, recorder.boto.client("s3"), network)
        try:
            yield platform
        finally:
            platform.clear()
