"""One rank of `run.py`: time the same sums with `smddp` and NCCL. Each backend is first in repeat."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import torch
import torch.distributed as dist

from herringbone_parallel.torch.data_parallel.api import install

_WARM_UP = 3


def seconds_of(tensor: torch.Tensor, group: Any) -> float:
    """Sum in place. Return the seconds until the slowest rank's device has the sum."""
    dist.barrier()
    torch.cuda.synchronize()
    began = time.perf_counter()
    dist.all_reduce(tensor, group=group)
    torch.cuda.synchronize()
    elapsed = torch.tensor([time.perf_counter() - began])
    dist.all_reduce(elapsed, op=dist.ReduceOp.MAX)
    return float(elapsed)


def measure(mb: float, repeats: int, groups: dict[str, Any]) -> dict[str, Any]:
    device = torch.device("cuda", torch.cuda.current_device())
    generator = torch.Generator(device).manual_seed(dist.get_rank())
    values = torch.randn(int(mb * 1e6) // 4, generator=generator, device=device)
    sums = {name: values.clone() for name in groups}
    for name, group in groups.items():
        dist.all_reduce(sums[name], group=group)
    ours, theirs = sums["smddp"], sums["nccl"]
    difference = float((ours - theirs).abs().max() / theirs.abs().max())
    times: dict[str, list[float]] = {name: [] for name in groups}
    for repeat in range(_WARM_UP + repeats):
        for name in list(groups) if repeat % 2 else list(reversed(groups)):
            seconds = seconds_of(values.clone(), groups[name])
            if repeat >= _WARM_UP:
                times[name].append(seconds)
    return {"mb": mb, "difference": difference, **times}


def main() -> None:
    repeats, sizes = int(sys.argv[1]), [float(size) for size in sys.argv[2:]]
    install()
    torch.cuda.set_device(int(os.environ["RANK"]) % torch.cuda.device_count())
    dist.init_process_group("smddp")
    groups = {"smddp": None, "nccl": dist.new_group(backend="nccl")}
    results = [measure(mb, repeats, groups) for mb in sizes]
    if dist.get_rank() == 0:
        print(json.dumps(results))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
