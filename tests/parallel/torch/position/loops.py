"""Trainings that go on from their newest checkpoint, one for each way to train; tests and campaigns run and kill them.

A loop is called in each rank, with a process group. Each rank appends its lines to `<log>.<rank>`: of each step the
epoch, the step, the numbers of the samples, and the loss; of the end, a digest of the weights.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from herringbone_parallel.torch.position.api import Training

SAMPLES, EPOCHS = 37, 2

Step = Callable[[torch.Tensor, torch.Tensor], float]


class Numbered(Dataset[Any]):
    """Samples that are augmented from the random numbers of torch, with their numbers."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        inputs = torch.linspace(0, 1, 4) * (index + 1) / self.samples
        return index, inputs + torch.rand(4) * 0.1, inputs.sum(0, keepdim=True)


class Log:
    """The lines of a rank."""

    def __init__(self, path: str, rank: int) -> None:
        self._path = Path(f"{path}.{rank}")

    def step(self, epoch: int, training: Training, indices: torch.Tensor, loss: float) -> None:
        self._write([epoch, training.step, indices.tolist(), loss])

    def end(self, weights: Any) -> None:
        digest = hashlib.sha256()
        for name, value in sorted(weights.items()):
            whole = value.full_tensor() if hasattr(value, "full_tensor") else value
            digest.update(name.encode() + whole.detach().cpu().contiguous().numpy().tobytes())
        self._write(["end", digest.hexdigest()])

    def _write(self, line: list[Any]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def net(dropout: float) -> nn.Sequential:
    torch.manual_seed(1)
    layers = nn.Linear(4, 8), nn.Dropout(dropout), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, 1)
    return nn.Sequential(*layers)


class Options(NamedTuple):
    """The keyword arguments of each loop; it saves after so many steps, and leaves after the step `stop`."""

    samples: int = SAMPLES
    epochs: int = EPOCHS
    batch_size: int = 4
    workers: int = 0
    every: int = 2
    stop: int = 0
    dropout: float = 0.3
    drop_last: bool = False
    seconds: float = 0.0


def loader_of(options: Options, ranks: int, rank: int) -> DataLoader[Any]:
    sampler: DistributedSampler[Any] = DistributedSampler(Numbered(options.samples), ranks, rank)
    return DataLoader(
        sampler.dataset, batch_size=options.batch_size, sampler=sampler, num_workers=options.workers,
        drop_last=options.drop_last,
    )  # fmt: skip


def run(training: Training, loader: DataLoader[Any], log: Log, step: Step, options: Options, scheduler: Any) -> bool:
    """Train from the newest checkpoint on; return False if the step `stop` came first."""
    training.resume()
    sampler: Any = loader.sampler
    for epoch in range(training.epoch, options.epochs):
        sampler.set_epoch(epoch)
        for indices, inputs, targets in loader:
            loss = step(inputs, targets)
            log.step(epoch, training, indices, loss)
            # So long, that a campaign meets it at any moment.
            time.sleep(options.seconds)
            if training.step % options.every == 0:
                training.save(in_background=training.step % (2 * options.every) == 0)
            if training.step == options.stop:
                return False
        scheduler.step()
    return True


def ddp(folder: str, log: str, **options: Any) -> None:
    """Train with DistributedDataParallel."""
    chosen = Options(**options)
    _plain(nn.parallel.DistributedDataParallel(net(chosen.dropout)), folder, log, chosen)


def fsdp2(folder: str, log: str, *, mesh: tuple[int, ...] = (), **options: Any) -> None:
    """Train with torch's `fully_shard`, over a mesh of one or two dimensions."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    chosen = Options(**options)
    model = net(chosen.dropout)
    names = ("replicate", "shard")[-len(mesh or (1,)) :]
    devices = init_device_mesh("cpu", mesh or (dist.get_world_size(),), mesh_dim_names=names)
    fully_shard(model[0], mesh=devices)
    fully_shard(model, mesh=devices)
    _plain(model, folder, log, chosen)


def tsm(folder: str, log: str, **options: Any) -> None:
    """Train with version 2 of AWS's library, whose `init` has run."""
    from herringbone_parallel.torch.sharding import api

    chosen = Options(**options)
    _plain(api.shard(net(chosen.dropout)), folder, log, chosen)


def smp(folder: str, log: str, **options: Any) -> None:
    """Train with version 1 of AWS's library, whose `init` has run: ranks of one pipeline read the same batches."""
    from herringbone_parallel.torch.model_parallel import api

    # The microbatches divide a batch, so the last samples of an epoch are left out.
    chosen = Options(**options)._replace(drop_last=True)
    model = api.DistributedModel(net(chosen.dropout))
    optimizer = api.DistributedOptimizer(torch.optim.AdamW(model.parameters(), lr=0.01))
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 2], 0.5)
    loader = loader_of(chosen, api.dp_size(), api.dp_rank())
    training = Training(folder=folder, model=model, optimizer=optimizer, loader=loader, scheduler=scheduler)

    @api.step
    def forward(model: Any, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss = (model(inputs) - targets).square().mean()
        model.backward(loss)
        return loss

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> float:
        optimizer.zero_grad()
        loss = forward(model, inputs, targets).reduce_mean().item()
        optimizer.step()
        return float(loss)

    lines = Log(log, dist.get_rank())
    if run(training, loader, lines, step, chosen, scheduler):
        lines.end(model.state_dict())


def _plain(model: nn.Module, folder: str, log: str, options: Options) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 2], 0.5)
    loader = loader_of(options, dist.get_world_size(), dist.get_rank())
    training = Training(folder=folder, model=model, optimizer=optimizer, loader=loader, scheduler=scheduler)

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> float:
        optimizer.zero_grad()
        loss = (model(inputs) - targets).square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    lines = Log(log, dist.get_rank())
    if run(training, loader, lines, step, options, scheduler):
        lines.end(model.state_dict())


LOOPS = {"ddp": ddp, "fsdp2": fsdp2, "tsm": tsm, "smp": smp}
