"""A stock DistributedDataParallel script through fit(): two hosts train, a helper sums, the dict sets the frequency."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from herringbone import InstanceGroup, PyTorch
from tests.e2e.counted import steps_by_rank

SCRIPT = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import smdistributed.dataparallel.torch.torch_smddp

dist.init_process_group("smddp")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step in range(6):
    torch.manual_seed(10 * step + rank)
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
print("weights", rank, dist.get_world_size(), weights.double().sum().item(), weights.double().norm().item())
dist.destroy_process_group()
"""


def alone(frequency: int) -> tuple[float, float]:
    """Return the sum and the norm of the weights after the same steps in one process, on the joined batches."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for first in range(0, 6, frequency):
        batch = []
        for seed in (10 * step + rank for step in range(first, first + frequency) for rank in (0, 1)):
            torch.manual_seed(seed)
            batch.append(torch.randn(4, 8))
        optimizer.zero_grad()
        model(torch.cat(batch)).square().mean().backward()
        optimizer.step()
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).double()
    return weights.sum().item(), weights.norm().item()


@pytest.mark.e2e
@pytest.mark.parametrize(("helpers", "frequency"), [(0, 1), (1, 3)])
def test_a_stock_script_trains_as_one_process_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, helpers: int, frequency: int
) -> None:
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "home"))
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text(SCRIPT)
    settings = {"helpers": "cpu"} if helpers else {}
    job = PyTorch(
        "train.py",
        source_dir=str(tmp_path / "src"),
        instance_groups=[
            InstanceGroup("gpu", "local_process", 2),
            *([InstanceGroup("cpu", "local_process", helpers)] if helpers else []),
        ],
        distribution={
            "smdistributed": {
                "dataparallel": {"enabled": True, "aggregation_frequency": frequency, **settings},
            }
        },
    ).fit(logs=False)
    assert job.status == "Completed"
    assert steps_by_rank(job.events()) == {0: (6, 5), 1: (6, 5)}
    lines = [line.text for line in job.logs()]
    weights_by_rank = [match.groups() for line in lines if (match := re.fullmatch(r"weights (\d) 2 (\S+) (\S+)", line))]
    assert sorted(rank for rank, _, _ in weights_by_rank) == ["0", "1"]
    assert len({(total, norm) for _, total, norm in weights_by_rank}) == 1
    assert (float(weights_by_rank[0][1]), float(weights_by_rank[0][2])) == pytest.approx(alone(frequency), abs=1e-5)
