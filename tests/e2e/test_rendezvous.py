"""Two hosts of a job on `ml.*` authenticate each other with the key that fit() uploaded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.sagemaker_platform import Platform, submitted
from tests.sagemaker.account import REGION

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
    """Yield a platform with a job of two hosts, which was submitted to a mock of AWS."""
    (tmp_path / "train.py").write_text(SCRIPT)
    with submitted(
        engine,
        image,
        tmp_path,
        monkeypatch,
        entry_point=str(tmp_path / "train.py"),
        image_uri=f"999999999999.dkr.ecr.{REGION}.amazonaws.com/herringbone/pytorch:1",
        instance_type="ml.g5.xlarge",
        instance_count=2,
        distribution={"torch_distributed": {"enabled": True}},
    ) as job_platform:
        yield job_platform


@pytest.mark.e2e
@pytest.mark.docker
def test_two_hosts_connect_with_the_key_of_fit(platform: Platform, tmp_path: Path) -> None:
    containers = [platform.start(tmp_path / host, tmp_path / "checkpoints", host=host, hosts=HOSTS) for host in HOSTS]
    codes = [platform.end(container) for container in containers]
    logs = [platform.log(container) for container in containers]
    assert codes == [0, 0], "\n".join(logs)
    for host, log in zip(HOSTS, logs, strict=True):
        assert f"{host} sum 3.0 channels []" in log
