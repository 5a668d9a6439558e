"""A script for Horovod runs through fit() under mpi, without Horovod installed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from herringbone import PyTorch
from tests.e2e.counted import steps_by_rank

SCRIPT = """
import torch
import horovod.torch as hvd

hvd.init()
torch.manual_seed(hvd.rank())
model = torch.nn.Linear(4, 2)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
inputs = torch.arange(32.0).reshape(8, 4)[hvd.rank() :: hvd.size()] / 32
for _ in range(3):
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()
print("weights", hvd.size(), *model.weight.flatten().tolist())
"""


def weights_alone() -> list[float]:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.arange(32.0).reshape(8, 4) / 32
    for _ in range(3):
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
    weights: list[float] = model.weight.flatten().tolist()
    return weights


@pytest.mark.e2e
@pytest.mark.mpi
def test_a_script_for_horovod_trains_as_one_process_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "home"))
    (tmp_path / "train.py").write_text(SCRIPT)
    job = PyTorch(
        str(tmp_path / "train.py"),
        instance_type="local_process",
        instance_count=2,
        environment={"OMP_NUM_THREADS": "1"},
        distribution={"mpi": {"enabled": True, "processes_per_host": 1}},
    ).fit(logs=False)
    assert steps_by_rank(job.events()) == {0: (3, 2), 1: (3, 2)}
    lines = [line.text for line in job.logs()]
    trained = [[float(word) for word in line.split()[1:]] for line in lines if line.startswith("weights")]
    assert trained == [pytest.approx([2, *weights_alone()], abs=1e-6)] * 2
    assert trained[0] == trained[1]
    assert sum("Herringbone's own answers to `import horovod`" in line for line in lines) == 1
