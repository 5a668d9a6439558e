"""`herringbone rehearse`: a healthy script stands every fault, and one that forgets something is found and named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from herringbone import PyTorch
from herringbone.records.home import Home
from tests.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

SCRIPT = """
import argparse, os, time
import torch
from torch.utils.data import DataLoader, TensorDataset
from herringbone_parallel.torch.position.api import Training

parser = argparse.ArgumentParser()
parser.add_argument("--forget", default="nothing")
forget = parser.parse_args().forget
torch.set_num_threads(1)
torch.manual_seed(1)
inputs = torch.rand(80, 4)
loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=4, shuffle=True)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
parts = {"model": model, "optimizer": optimizer, "loader": loader, "scheduler": scheduler}
training = Training(**{name: part for name, part in parts.items() if name != forget})
training.resume()
for epoch in range(training.epoch, 1):
    for batch, targets in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(batch), targets).backward()
        optimizer.step()
        scheduler.step()
        time.sleep(0.1)
        if training.step % 4 == 0:
            training.save()
"""


@pytest.fixture
def estimator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HERRINGBONE_SLOTS", str(tmp_path / "slots"))
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    return lambda **values: PyTorch(str(script), instance_type="local_process", hyperparameters=values)


def test_a_healthy_script_stands_the_faults(estimator: Any, tmp_path: Path) -> None:
    result = estimator().rehearse(faults=("rank-killed", "save-torn", "link-cut"), job_name="healthy")
    assert [(row.fault, row.equal) for row in result.rows] == [
        ("undisturbed", "yes"), ("rank-killed", "yes"), ("save-torn", "yes"), ("link-cut", "not caused"),
    ], result.table  # fmt: skip
    assert (result.ok, result.summary) == (True, "2 of 2 equal")
    killed = result.rows[1]
    assert killed.jobs == ("healthy-rank-killed", "healthy-rank-killed-2")
    assert None not in (killed.detected, killed.lost)
    assert killed.redone is not None
    assert killed.redone < 8
    home = Home(tmp_path / "home")
    assert json.loads((home.rehearsal("healthy") / "rehearsal.json").read_text())["summary"] == result.summary
    assert "healthy-rank-killed-2" in Path(result.report).read_text()
    # Its checkpoints are not needed any more, and a later job of the same code has been rehearsed.
    assert sorted(path.name for path in home.rehearsal("healthy").iterdir()) == ["rehearsal.json", "report.html"]
    job = estimator(forget="nothing").fit(wait=False)
    wait_until(lambda: "2 of 2 equal" in job.describe()["Herringbone"].get("Rehearsed", ""))
    job.stop()
    job.wait()


def test_a_scheduler_that_is_not_saved_is_found_and_named(estimator: Any) -> None:
    result = estimator(forget="scheduler").rehearse(faults=("rank-killed",))
    assert not result.ok
    assert result.rows[1].equal == "no"
    assert "scheduler not restored" in result.rows[1].text
