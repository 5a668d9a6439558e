"""Train one of the benchmark's models on synthetic data: a plain script, or one of either version of `smp`.

Usage: python train.py --model gpt2 --library plain|smp|sagemaker [--size full|small] [--batch 4] [--steps 6]
       [--device cpu|cuda]

`plain` wraps the model in DistributedDataParallel where there are several ranks.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from cases import CASES, Case
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler
from watch import Watch


class Samples(Dataset[dict[str, Any]]):
    """Random samples, the same ones for an index in every process."""

    def __init__(self, case: Case, size: str, count: int) -> None:
        self._case, self._length, self._count = case, case.length[size], count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, Any]:
        torch.manual_seed(index)
        return self._case.sample(self._length)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=sorted(CASES), required=True)
    parser.add_argument("--library", choices=["plain", "smp", "sagemaker"], default="plain")
    parser.add_argument("--size", choices=["full", "small"], default="small")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    return parser.parse_known_args(arguments)[0]


def plain(model: nn.Module, case: Case) -> tuple[Callable[[dict[str, Any]], None], int, int]:
    ranks, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if ranks > 1:
        on_gpu = next(model.parameters()).is_cuda
        torch.distributed.init_process_group("nccl" if on_gpu else "gloo")
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step(batch: dict[str, Any]) -> None:
        optimizer.zero_grad()
        case.loss(model, batch).backward()
        optimizer.step()

    return step, ranks, rank


def sagemaker(model: nn.Module, case: Case) -> tuple[Callable[[dict[str, Any]], None], int, int]:
    from herringbone_parallel.torch.sharding import api as tsm

    tsm.init()
    sharded = tsm.shard(model)
    optimizer = torch.optim.AdamW(sharded.parameters(), lr=1e-4)

    def step(batch: dict[str, Any]) -> None:
        optimizer.zero_grad()
        case.loss(sharded, batch).backward()
        optimizer.step()

    return step, tsm.state.dp_size, tsm.state.dp_rank


def smp(model: nn.Module, case: Case) -> tuple[Callable[[dict[str, Any]], None], int, int]:
    import smdistributed.modelparallel.torch as smp

    smp.init()
    distributed = smp.DistributedModel(model)
    optimizer = smp.DistributedOptimizer(torch.optim.AdamW(distributed.parameters(), lr=1e-4))

    @smp.step
    def train(batch: dict[str, Any]) -> Tensor:
        loss = case.loss(distributed, batch)
        distributed.backward(loss)
        return loss

    def step(batch: dict[str, Any]) -> None:
        optimizer.zero_grad()
        train(batch)
        optimizer.step()

    return step, smp.dp_size(), smp.dp_rank()


LIBRARIES = {"plain": plain, "smp": smp, "sagemaker": sagemaker}


def main(arguments: Sequence[str] | None = None) -> None:
    settings = parse(arguments)
    case = CASES[settings.model]
    watch = Watch(settings.device)
    torch.manual_seed(0)
    if settings.device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    step, ranks, rank = LIBRARIES[settings.library](case.make(settings.size).to(settings.device), case)
    samples = Samples(case, settings.size, settings.batch * settings.steps * ranks)
    sampler = DistributedSampler(samples, ranks, rank, shuffle=False)
    for batch in DataLoader(samples, settings.batch, sampler=sampler):
        step({name: tensor.to(settings.device) for name, tensor in batch.items()})
        watch.step_ended()
    watch.write()


if __name__ == "__main__":
    main()
