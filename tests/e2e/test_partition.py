"""A job measures its model and keeps the partition; `partition show` prints it, and the next job loads it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from herringbone import PyTorch
from herringbone.cli.__main__ import main

SCRIPT = """
import smdistributed.modelparallel.torch as smp
import torch
from torch import nn

smp.init()
torch.manual_seed(1)
module = nn.Sequential(
    nn.Embedding(50, 16), nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), nn.Linear(16, 50)
)
model = smp.DistributedModel(module)
optimizer = smp.DistributedOptimizer(torch.optim.Adam(module.parameters()))
calls = 0

@smp.step
def train_step(tokens):
    global calls
    calls += 1
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    model.backward(loss)
    return loss

for _ in range(2):
    optimizer.zero_grad()
    loss = train_step(torch.arange(32).view(4, 8)).reduce_mean()
    optimizer.step()
if smp.rank() == 0:
    print(f"calls={calls} loss={loss.item():.9f}")
"""


def fit(folder: Path, **parameters: Any) -> tuple[int, str]:
    """Train on two ranks. Return the number of calls of the step function on rank 0, and the loss."""
    settings = {"partitions": 2, "microbatches": 2, "partition_file": str(folder / "partition.json"), **parameters}
    job = PyTorch(
        "train.py",
        source_dir=str(folder / "src"),
        instance_type="local_process",
        instance_count=1,
        environment={"OMP_NUM_THREADS": "1"},
        distribution={
            "smdistributed": {"modelparallel": {"enabled": True, "parameters": settings}},
            "mpi": {"enabled": True, "processes_per_host": 2},
        },
    ).fit()
    match = re.search(r"calls=(\d+) loss=(\S+)", "\n".join(str(line) for line in job.logs()))
    assert match is not None
    return int(match[1]), match[2]


@pytest.mark.e2e
@pytest.mark.mpi
def test_a_job_s_partition_is_shown_and_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "home"))
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text(SCRIPT)
    calls, loss = fit(tmp_path)
    assert calls == 2 * 2, "two microbatches in each of two steps: the trace leaves no sign"
    assert fit(tmp_path, load_partition=True) == (calls, loss)
    capsys.readouterr()
    assert main(["partition", "show", str(tmp_path / "partition.json")]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^ *0-1  \(model\)  [\d.]+ KiB$", shown, re.MULTILINE)
    assert re.search(r"^ *[01]  +linear1  ", shown, re.MULTILINE)
    assert re.search(r"^RANK +COST +MEMORY +SECONDS +COMMUNICATION$", shown, re.MULTILINE)
    assert re.search(r"costliest [\d.]+ %, (the best there is|[\d.]+ % above the bound [\d.]+ %)$", shown, re.MULTILINE)
