"""A loop of torch's DDP with checkpoints of its own, which asks `herringbone.should_stop` once a step."""

import argparse
import os
import time
from pathlib import Path
from typing import Any

import torch
from steplog import StepLog
from torch import distributed as dist
from torch import nn

import herringbone

STEPS, SAMPLES, BATCH = 16, 64, 8

parser = argparse.ArgumentParser()
parser.add_argument("--dropout", type=float, default=0.3)
arguments, _ = parser.parse_known_args()
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
log = StepLog(rank)
torch.manual_seed(1 + rank)
model: Any = nn.parallel.DistributedDataParallel(
    nn.Sequential(nn.Linear(4, 16), nn.Dropout(arguments.dropout), nn.Linear(16, 1))
)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
slow = float(os.environ["LOOP_SECONDS"])
# Each rank has random numbers of its own.
folder = Path(os.environ["SM_CHECKPOINT_DIR"])
newest = max((int(path.name[5:]) for path in folder.glob("step-*")), default=0)


def save(step: int) -> None:
    part = folder / f".part-{step}"
    part.mkdir(exist_ok=True)
    state = [model.state_dict(), optimizer.state_dict(), torch.get_rng_state()]
    torch.save(state, part / f"{rank}.pt")
    time.sleep(slow)
    dist.barrier()
    if rank == 0:
        part.rename(folder / f"step-{step}")
    dist.barrier()


if newest:
    weights, moments, numbers = torch.load(folder / f"step-{newest}" / f"{rank}.pt")
    model.load_state_dict(weights)
    optimizer.load_state_dict(moments)
    torch.set_rng_state(numbers)
for step in range(newest + 1, STEPS + 1):
    indices = torch.arange(step * BATCH + rank, (step + 1) * BATCH, ranks) % SAMPLES
    optimizer.zero_grad()
    inputs = indices[:, None].expand(-1, 4) / SAMPLES
    loss = (model(inputs).squeeze(1) - indices / SAMPLES).square().mean()
    loss.backward()
    optimizer.step()
    log.step(step, 0, indices.tolist(), loss.item())
    if step % 5 == 0:
        # An evaluation.
        time.sleep(2 * slow)
        dist.barrier()
    is_asked = herringbone.should_stop()
    if is_asked or step % 4 == 0:
        save(step)
    if is_asked:
        raise SystemExit(0)
log.end(value for weight in model.parameters() for value in weight.flatten().tolist())
dist.destroy_process_group()
