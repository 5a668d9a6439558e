"""A loop of one's own: torch's DDP, torch's FSDP2, or `tsm.shard`; `Training` keeps what it goes on with."""

import argparse
import random
from typing import Any

import torch
from steplog import StepLog
from torch import distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from herringbone_parallel.torch.position.api import Training

SAMPLES, EPOCHS, BATCH = 64, 2, 8


class Augmented(Dataset[Any]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, torch.full((4,), index / SAMPLES) + random.random() * 0.1


parser = argparse.ArgumentParser()
parser.add_argument("--kind")
parser.add_argument("--dropout", type=float, default=0.3)
parser.add_argument("--workers", type=int, default=1)
arguments, _ = parser.parse_known_args()
if arguments.kind == "tsm":
    from herringbone_parallel.torch.sharding import api as tsm

    tsm.init()
else:
    dist.init_process_group("gloo")
ranks = dist.get_world_size()
log = StepLog(dist.get_rank())
torch.manual_seed(1)
random.seed(1)
net = nn.Sequential(nn.Linear(4, 16), nn.Dropout(arguments.dropout), nn.Linear(16, 1))
model: Any
if arguments.kind == "tsm":
    model = tsm.shard(net)
elif arguments.kind == "fsdp2":
    from torch.distributed.fsdp import fully_shard

    model = fully_shard(net)
else:
    model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1], 0.5)
sampler: DistributedSampler[Any] = DistributedSampler(Augmented())
loader: DataLoader[Any] = DataLoader(
    Augmented(), batch_size=BATCH // ranks, sampler=sampler, num_workers=arguments.workers
)
training = Training(model=model, optimizer=optimizer, loader=loader, scheduler=scheduler)
training.resume()
for epoch in range(training.epoch, EPOCHS):
    sampler.set_epoch(epoch)
    for indices, inputs in loader:
        optimizer.zero_grad()
        loss = (model(inputs).squeeze(1) - indices / SAMPLES).square().mean()
        loss.backward()
        optimizer.step()
        log.step(training.step, epoch, indices, loss.item())
        if training.step % 2 == 0:
            training.save(in_background=training.step % 4 == 0)
    scheduler.step()
weights = [getattr(value, "full_tensor", lambda v=value: v)() for value in model.parameters()]
log.end(value for weight in weights for value in weight.flatten().tolist())
dist.destroy_process_group()
