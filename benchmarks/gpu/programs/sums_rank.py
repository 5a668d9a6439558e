"""One rank of `sums.py`: time the same sums and steps with `smddp` and NCCL. Each is first in every second repeat."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from cases import CASES
from torch.nn.parallel import DistributedDataParallel

from herringbone_parallel.torch.data_parallel.api import install

_WARM_UP = 3
_BATCH = {"full": 32, "small": 2}
_SIDE = {"full": 224, "small": 32}


def wait(device: torch.device) -> None:
    """Wait until the device has done all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """Return the seconds until the slowest rank's device has done the work."""
    dist.barrier()
    wait(device)
    began = time.perf_counter()
    work()
    wait(device)
    elapsed = torch.tensor([time.perf_counter() - began])
    dist.all_reduce(elapsed, op=dist.ReduceOp.MAX)
    return float(elapsed)


def in_turn(works: dict[str, Callable[[], object]], repeats: int, device: torch.device) -> dict[str, list[float]]:
    """Return the seconds of each work, measured in turn."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for repeat in range(_WARM_UP + repeats):
        for name in list(works) if repeat % 2 else list(reversed(works)):
            seconds = seconds_of(works[name], device)
            if repeat >= _WARM_UP:
                times[name].append(seconds)
    return times


def time_sums(mb: float, repeats: int, groups: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Sum the same values in both groups."""
    generator = torch.Generator(device).manual_seed(dist.get_rank())
    values = torch.randn(int(mb * 1e6) // 4, generator=generator, device=device)
    sums = {name: values.clone() for name in groups}
    for name, group in groups.items():
        dist.all_reduce(sums[name], group=group)
    ours, theirs = sums.values()
    difference = float((ours - theirs).abs().max() / theirs.abs().max())
    # Sums grow with each repeat, which fp32 holds; a copy before each would be timed, too.
    targets = {name: values.clone().mul_(1e-20) for name in groups}
    works = {
        name: (lambda name=name, group=group: dist.all_reduce(targets[name], group=group))
        for name, group in groups.items()
    }
    return {"mb": mb, "difference": difference, **in_turn(works, repeats, device)}


def time_steps(size: str, repeats: int, groups: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Train a ResNet-50 under DistributedDataParallel in both groups."""
    case = CASES["resnet50"]
    works: dict[str, Callable[[], object]] = {}
    losses: dict[str, float] = {}
    for name, group in groups.items():
        torch.manual_seed(0)
        model = DistributedDataParallel(case.make(size).to(device), process_group=group)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        torch.manual_seed(1 + dist.get_rank())
        batch = {
            "pixel_values": torch.randn(_BATCH[size], 3, _SIDE[size], _SIDE[size]).to(device),
            "labels": torch.randint(0, 1000, (_BATCH[size],)).to(device),
        }

        def step(name: str = name, model: Any = model, optimizer: Any = optimizer, batch: Any = batch) -> None:
            optimizer.zero_grad()
            loss = case.loss(model, batch)
            loss.backward()
            optimizer.step()
            losses[name] = loss.detach()

        works[name] = step
    times = in_turn(works, repeats, device)
    ours, theirs = (float(loss) for loss in losses.values())
    return {"model": "resnet50", "batch": _BATCH[size], "difference": abs(ours - theirs) / abs(theirs), **times}


def main() -> None:
    kind, size, repeats, *megabytes = sys.argv[1:]
    device = torch.device("cpu")
    if kind == "cuda":
        device = torch.device("cuda", int(os.environ["RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    install()
    dist.init_process_group("smddp")
    other = "nccl" if kind == "cuda" else "gloo"
    groups = {"smddp": None, other: dist.new_group(backend=other)}
    sums = [time_sums(float(mb), int(repeats), groups, device) for mb in megabytes]
    ddp = time_steps(size, int(repeats), groups, device)
    if dist.get_rank() == 0:
        print(json.dumps({"sums": sums, "ddp": ddp}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
