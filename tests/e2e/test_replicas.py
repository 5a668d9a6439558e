"""Two replicas of two partitions, through fit(): the losses are those of one process on the joined batches."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from herringbone import PyTorch

SCRIPT = """
import smdistributed.modelparallel.torch as smp
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

smp.init()
torch.manual_seed(1)
data = TensorDataset(torch.randn(32, 6), torch.randint(0, 3, (32,)))
sampler = DistributedSampler(data, num_replicas=smp.dp_size(), rank=smp.dp_rank(), shuffle=False)
module = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Linear(16, 3))
model = smp.DistributedModel(module)
optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))

@smp.step
def train_step(model, inputs, target):
    loss = nn.functional.cross_entropy(model(inputs), target)
    model.backward(loss)
    return loss

for epoch in range(2):
    sampler.set_epoch(epoch)
    for inputs, target in DataLoader(data, batch_size=4, sampler=sampler):
        optimizer.zero_grad()
        loss = train_step(model, inputs, target).reduce_mean()
        optimizer.step()
        mean = sum(smp.allgather(loss.item(), smp.DP_GROUP)) / smp.dp_size()
        if smp.rank() == 0:
            print(f"loss={mean:.7f}")
"""


def losses_alone() -> list[float]:
    torch.manual_seed(1)
    inputs, target = torch.randn(32, 6), torch.randint(0, 3, (32,))
    module = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        for start in range(0, 32, 8):
            optimizer.zero_grad()
            # Each of the two samplers takes every second example, so a step trains on the next eight.
            loss = nn.functional.cross_entropy(module(inputs[start : start + 8]), target[start : start + 8])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


@pytest.mark.e2e
@pytest.mark.mpi
def test_replicas_of_a_pipeline_train_through_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Not the default placement, which tests/parallel/torch/model_parallel/replicas trains as well.
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "home"))
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text(SCRIPT)
    parameters = {"partitions": 2, "microbatches": 2, "ddp": True, "placement_strategy": "spread"}
    job = PyTorch(
        "train.py",
        source_dir=str(tmp_path / "src"),
        instance_type="local_process",
        instance_count=1,
        environment={"OMP_NUM_THREADS": "1"},
        distribution={
            "smdistributed": {"modelparallel": {"enabled": True, "parameters": parameters}},
            "mpi": {"enabled": True, "processes_per_host": 4},
        },
    ).fit()
    measured = [float(loss) for loss in re.findall(r"loss=([0-9.]+)", "\n".join(str(line) for line in job.logs()))]
    assert measured == pytest.approx(losses_alone(), abs=1e-6)
