"""Predicted memory next to the bytes that torch's allocator gives out on real ranks, within 5 percent.

The ranks are processes of their own, whose allocator `benchmarks/plan/allocated.py` counts in all threads: gloo and DDP
free tensors in threads that torch's profiler does not see.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from benchmarks.plan.allocated import AllocatedMemory, counting
from torch import nn
from torch.nn import functional

from herringbone_contract.model_parallel.mesh import Mesh
from herringbone_parallel.core.prediction.layout import Layout, Library
from herringbone_parallel.core.prediction.memory import MemoryModel
from tests.parallel.torch.measure.scripts import Words, measured

RANKS = 2
LAYOUTS = {
    "one": Layout(),
    "replicas": Layout(mesh=Mesh(replicate=RANKS), library=Library.DDP),
}


def train(way: str, memory: AllocatedMemory | None = None) -> int:
    """Train for three steps in one of the ways; return the peak of the last step, where `memory` counts."""
    model: nn.Module = Words(width=128)
    if way == "replicas":
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        if memory is not None:
            # The last mark begins a step of which everything is there, such as states.
            memory.mark()
        tokens = torch.randint(0, 1000, (2, 16))
        optimizer.zero_grad()
        functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
    return 0 if memory is None else memory.peak()


def real_peaks() -> dict[str, int]:
    """Return the peak of each way, as a rank whose process counts."""
    memory = AllocatedMemory()
    torch.distributed.init_process_group("gloo")
    peaks = {}
    for way in LAYOUTS:
        before = memory.held()
        peaks[way] = train(way, memory) - before
    torch.distributed.destroy_process_group()
    return peaks


def test_predictions_are_near_real_ranks(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    environment = {
        **os.environ,
        **counting(tmp_path),
        "PYTHONPATH": os.pathsep.join(sys.path),
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(RANKS),
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", __name__],
            env={**environment, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    try:
        peaks = [json.loads(rank.communicate(timeout=60)[0].splitlines()[-1]) for rank in ranks]
    finally:
        # One that waits for a rank that failed would never end.
        for rank in ranks:
            rank.kill()
    model = MemoryModel(measured(partial(train, "one")))
    for way, layout in LAYOUTS.items():
        assert model.memory(layout)[0].peak == pytest.approx(max(peak[way] for peak in peaks), rel=0.05), way


if __name__ == "__main__":
    print(json.dumps(real_peaks()))
