"""A pipeline of SMP's version 1: a batch is split into microbatches, and `Training` keeps what it goes on with."""

import argparse
from typing import Any

import smdistributed.modelparallel.torch as smp
import torch
from steplog import StepLog
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from herringbone_parallel.torch.position.api import Training

SAMPLES, EPOCHS, BATCH = 64, 2, 8

parser = argparse.ArgumentParser()
parser.add_argument("--dropout", type=float, default=0.3)
arguments, _ = parser.parse_known_args()
smp.init()
log = StepLog(smp.rank())
torch.manual_seed(1)
net = nn.Sequential(nn.Linear(4, 16), nn.Dropout(arguments.dropout), nn.Linear(16, 16), nn.Linear(16, 1))
model = smp.DistributedModel(net)
optimizer = smp.DistributedOptimizer(torch.optim.AdamW(model.parameters(), lr=0.01))
scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1], 0.5)
inputs = torch.arange(SAMPLES)[:, None].expand(SAMPLES, 4) / SAMPLES
dataset = TensorDataset(torch.arange(SAMPLES), inputs)
sampler: DistributedSampler[Any] = DistributedSampler(dataset, num_replicas=smp.dp_size(), rank=smp.dp_rank())
loader: DataLoader[Any] = DataLoader(dataset, batch_size=BATCH // smp.dp_size(), sampler=sampler)
training = Training(model=model, optimizer=optimizer, loader=loader, scheduler=scheduler)


@smp.step
def train_step(model: Any, indices: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    loss = (model(inputs).squeeze(1) - indices / SAMPLES).square().mean()
    model.backward(loss)
    return loss


training.resume()
for epoch in range(training.epoch, EPOCHS):
    sampler.set_epoch(epoch)
    for indices, batch in loader:
        optimizer.zero_grad()
        loss = train_step(model, indices, batch).reduce_mean()
        optimizer.step()
        # Ranks of one pipeline have the same samples.
        if smp.pp_rank() == 0:
            log.step(training.step, epoch, indices, loss.item())
        if training.step % 2 == 0:
            training.save(in_background=training.step % 4 == 0)
    scheduler.step()
weights = model.state_dict()
log.end(value for name in sorted(weights) for value in weights[name].flatten().tolist())
