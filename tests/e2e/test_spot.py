"""A stopped job saves its state. The next job resumes, and ends with the weights of an uninterrupted run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.e2e.sagemaker_platform import Platform, submitted

EXAMPLE = Path(__file__).parents[2] / "examples" / "spot"
SPLIT = {
    "smdistributed": {"modelparallel": {"enabled": True, "parameters": {"partitions": 2, "microbatches": 2}}},
    "mpi": {"enabled": True, "processes_per_host": 2},
}


# The test runs three trainings, and every rank imports torch.
@pytest.mark.timeout(300)
@pytest.mark.e2e
@pytest.mark.parametrize(
    ("script", "steps"), [("plain", 600), pytest.param("split", 60, marks=pytest.mark.mpi)], ids=["plain", "split"]
)
def test_the_example_on_this_machine(tmp_path: Path, script: str, steps: int) -> None:
    command = [sys.executable, EXAMPLE / "submit.py", "--script", script, "--steps", str(steps), "--json"]
    environ = {**os.environ, "HERRINGBONE_HOME": str(tmp_path / "home")}
    done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, check=True)
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["stopped"], result["resumed"]) == ("Stopped", "Completed")
    assert result["saved_at"] == result["resumed_at"] < steps
    assert result["difference"] == 0


@pytest.fixture
def platform(engine: Any, image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    """Yield a platform with the example's split script, which was submitted to a mock of AWS."""
    with submitted(
        engine,
        image,
        tmp_path,
        monkeypatch,
        entry_point="split.py",
        source_dir=str(EXAMPLE / "src"),
        hyperparameters={"steps": 150},
        distribution=SPLIT,
        environment={"OMP_NUM_THREADS": "1"},
        use_spot_instances=True,
        max_run=3600,
        max_wait=7200,
        checkpoint_s3_uri="s3://anywhere/checkpoints",
    ) as job_platform:
        yield job_platform


# The test runs three trainings, and every rank imports torch.
@pytest.mark.timeout(300)
@pytest.mark.e2e
@pytest.mark.docker
def test_a_container_resumes_after_an_interruption_by_sagemaker(platform: Platform, tmp_path: Path) -> None:
    undisturbed = platform.start(tmp_path / "one", tmp_path / "no-checkpoints")
    stopped = platform.start(tmp_path / "two", tmp_path / "checkpoints")
    platform.until(stopped, "step=20 ")
    platform.interrupt(stopped)
    assert platform.end(stopped) == 143, platform.log(stopped)
    assert "saved_at=" in platform.log(stopped)
    # The host wrote neither a success nor a failure, so that the platform restarts it.
    assert not {"success", "failure"} & {path.name for path in (tmp_path / "two" / "output").iterdir()}

    resumed = platform.start(tmp_path / "three", tmp_path / "checkpoints")
    assert platform.end(resumed) == 0, platform.log(resumed)
    assert "resumed_at=" in platform.log(resumed)
    assert platform.end(undisturbed) == 0, platform.log(undisturbed)
    whole, parts = (torch.load(tmp_path / run / "model" / "model.pt", weights_only=True) for run in ("one", "three"))
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
