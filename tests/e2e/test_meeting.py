"""Two hosts of a job that was submitted to `ml.*`: fit() has brought what they need to know each other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.aws_mock import mock_aws
from tests.e2e.sagemaker_platform import Platform
from tests.sagemaker.account import REGION, Wire, described, estimator, make_role

SCRIPT = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
sum_of_ranks = torch.tensor(float(dist.get_rank() + 1))
dist.all_reduce(sum_of_ranks)
print(os.environ["SM_CURRENT_HOST"], "sum", sum_of_ranks.item(), "channels", os.environ["SM_CHANNELS"], flush=True)
dist.destroy_process_group()
"""
HOSTS = ("algo-1", "algo-2")


@pytest.fixture
def platform(engine: Any, image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    """A platform with a job of two hosts, submitted to a mock of AWS."""
    (tmp_path / "train.py").write_text(SCRIPT)
    with mock_aws(tmp_path / "aws.log") as address:
        nothing = str(tmp_path / "no-such-file")
        variables = {"AWS_ACCESS_KEY_ID": "mock", "AWS_SECRET_ACCESS_KEY": "mock", "AWS_DEFAULT_REGION": REGION}
        here = {"AWS_ENDPOINT_URL": address, "AWS_CONFIG_FILE": nothing, "AWS_SHARED_CREDENTIALS_FILE": nothing}
        for name, value in {**variables, **here, "HERRINGBONE_HOME": str(tmp_path / "home")}.items():
            monkeypatch.setenv(name, value)
        wire = Wire()
        make_role(wire.boto)
        job = estimator(
            wire,
            entry_point=str(tmp_path / "train.py"),
            image_uri=f"999999999999.dkr.ecr.{REGION}.amazonaws.com/herringbone/pytorch:1",
            instance_type="ml.g5.xlarge",
            instance_count=2,
            distribution={"torch_distributed": {"enabled": True}},
        ).fit(wait=False)
        assert job.plan.request is not None
        # The mock forgets the environment.
        request = {"Environment": job.plan.request["Environment"], **described(wire.boto, job.name)}
        made = Platform(engine, image, request, {**variables, "AWS_ENDPOINT_URL_S3": address}, wire.boto.client("s3"))
        yield made
        made.clear()


@pytest.mark.e2e
@pytest.mark.docker
def test_two_hosts_meet_by_the_key_that_fit_made(platform: Platform, tmp_path: Path) -> None:
    containers = [platform.start(tmp_path / host, tmp_path / "checkpoints", host=host, hosts=HOSTS) for host in HOSTS]
    codes = [platform.end(container) for container in containers]
    logs = [platform.log(container) for container in containers]
    assert codes == [0, 0], "\n".join(logs)
    for host, log in zip(HOSTS, logs, strict=True):
        assert f"{host} sum 3.0 channels []" in log
