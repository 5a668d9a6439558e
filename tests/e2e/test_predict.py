"""A real script, measured, predicted, trained and compared."""

from __future__ import annotations

import sys

import pytest

from herringbone import Measure, PyTorch
from herringbone.prediction.estimating import predicted
from herringbone.prediction.forecast import Forecaster, Programs
from herringbone.prediction.measuring import Program
from herringbone.records.home import find_home
from tests.sdk.conftest import with_namespaces

pytest.importorskip("torch")

SCRIPT = """
import argparse, os, torch
import torch.distributed as dist
from torch import nn
parser = argparse.ArgumentParser()
parser.add_argument("--max_steps", type=int)
steps = parser.parse_args().max_steps
many = int(os.environ["WORLD_SIZE"]) > 1
if many:
    dist.init_process_group("gloo")
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))
if many:
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(steps):
    loss = model(torch.randn(32, 256)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
open(os.path.join(os.environ["SM_MODEL_DIR"], "done"), "w").close()
"""


# Timing steps takes seconds of all cores, and has tests of its own.
PROGRAMS = Programs(timing=Program((sys.executable, "-c", "raise SystemExit('left out')")))


@with_namespaces
def test_a_job_is_predicted_and_compared_with_its_prediction(tmp_path, monkeypatch):
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    estimator = PyTorch("train.py", instance_type="local_process", hyperparameters={"max_steps": 20})
    prediction = predicted(estimator.plan(), Measure(), Forecaster(find_home(), PROGRAMS)).prediction
    assert prediction is not None
    assert any("could not be timed" in note for note in prediction.notes)
    [memory] = prediction.planned.memory
    parameters = 4 * (256 * 512 + 512 + 512 * 256 + 256)
    assert (memory.parameters, memory.gradients) == (parameters, parameters)
    # Adam keeps two tensors for each parameter, and counts steps.
    assert 2 * parameters <= memory.states <= 2.01 * parameters
    # `fit` finds the measurement by itself.
    compared = estimator.fit(logs=False).describe()["Herringbone"]["Prediction"]
    assert compared["StepSeconds"]["Measured"] > 0
    assert compared["PeakMemoryBytes"]["Predicted"] == memory.peak
    assert compared["PeakMemoryBytes"]["ProcessGrowth"] > 0
