"""SageMaker's part of a training job that was submitted to the mock: containers, channels, `/opt/ml`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from herringbone.backends.sagemaker.account import parse_s3_uri
from tests.aws_mock import mock_aws
from tests.sagemaker.account import REGION, RequestRecorder, described, estimator, make_role


class Platform:
    """Runs the hosts of one request, each in a container: on this machine's network, or one of their own.

    >>> container = platform.start(tmp_path / "one", tmp_path / "checkpoints")      # doctest: +SKIP
    >>> platform.end(container), platform.log(container)                            # doctest: +SKIP

    `environment` is what the service adds to the request's own, `s3` a client to fetch channels with; `network` names
    the hosts' own.
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
            own = engine.create_networking_config({self._network: engine.create_endpoint_config(aliases=[host])})
            reach: dict[str, Any] = {}
        else:
            own = None
            reach = {"network_mode": "host", "extra_hosts": dict.fromkeys(hosts, "127.0.0.1")}
        made = engine.create_container(
            self._image,
            "train",
            hostname=None if own is None else host,
            environment={**self._request["Environment"], **self._environment},
            host_config=engine.create_host_config(binds=binds, **reach),
            networking_config=own,
        )
        engine.start(made["Id"])
        self._containers.append(made["Id"])
        return str(made["Id"])

    def _group(self, host: str, hosts: Sequence[str]) -> dict[str, Any]:
        """What resourceconfig.json says of instance groups, where the job has some: hosts are counted through them."""
        left, groups, own = list(hosts), [], {}
        for asked in self._request["ResourceConfig"].get("InstanceGroups", ()):
            taken, left = left[: asked["InstanceCount"]], left[asked["InstanceCount"] :]
            name, kind = asked["InstanceGroupName"], asked["InstanceType"]
            groups.append({"instance_group_name": name, "instance_type": kind, "hosts": taken})
            if host in taken:
                own = {"current_group_name": name, "current_instance_type": kind}
        return {**own, "instance_groups": groups} if groups else {}

    def _channels(self, group: str | None) -> list[dict[str, Any]]:
        """The channels that hosts of a group get."""
        sources = [(each, each["DataSource"]["S3DataSource"]) for each in self._request.get("InputDataConfig", [])]
        return [each for each, source in sources if group in source.get("InstanceGroupNames", [group])]

    def _fetch(self, address: str, folder: Path) -> None:
        """Put what lies below an address into the folder of its channel."""
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
    """Submit the job of an estimator with these arguments to a mock of AWS, as any job is; yield what runs it.

    Hosts on a `network` of their own reach the mock at the address that this machine has there.
    """
    at = "127.0.0.1" if network is None else engine.inspect_network(network)["IPAM"]["Config"][0]["Gateway"]
    with mock_aws(folder / "aws.log", at) as address:
        nothing = str(folder / "no-such-file")
        variables = {"AWS_ACCESS_KEY_ID": "mock", "AWS_SECRET_ACCESS_KEY": "mock", "AWS_DEFAULT_REGION": REGION}
        here = {"AWS_ENDPOINT_URL": address, "AWS_CONFIG_FILE": nothing, "AWS_SHARED_CREDENTIALS_FILE": nothing}
        for name, value in {**variables, **here, "HERRINGBONE_HOME": str(folder / "home")}.items():
            monkeypatch.setenv(name, value)
        recorder = RequestRecorder()
        make_role(recorder.boto)
        job = estimator(recorder, **arguments).fit(wait=False)
        assert job.plan.request is not None
        # The mock forgets the environment.
        request = {"Environment": job.plan.request["Environment"], **described(recorder.boto, job.name)}
        environment = {**variables, "AWS_ENDPOINT_URL_S3": address}
        made = Platform(engine, image, request, environment, recorder.boto.client("s3"), network)
        try:
            yield made
        finally:
            made.clear()
