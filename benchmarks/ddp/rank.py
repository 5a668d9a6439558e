"""One rank of run.py: time the same step with DistributedDataParallel on `smddp`, on gloo, and without sums, in turn.

Usage: python rank.py MODEL REPEATS; run.py sets addresses in the environment. Rank 0 prints JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from models import build
from torch.nn.parallel import DistributedDataParallel

from herringbone_parallel.reduce import session
from herringbone_parallel.torch.data_parallel.api import install

# DistributedDataParallel's default of 25 MiB, and two sizes that are faster for models this small.
GLOO_BUCKETS_MB = (25, 4, 1)


def step_of(model: Any, loss: Callable[[Any], torch.Tensor], optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    def step() -> None:
        optimizer.zero_grad()
        loss(model).backward()
        optimizer.step()

    return step


def variants(name: str) -> tuple[dict[str, Callable[[], Any]], Any]:
    """Return the functions to time, by name, and the model of `ours`. A function may return its own time."""
    rank = dist.get_rank()
    gloo = dist.new_group(backend="gloo")
    functions: dict[str, Callable[[], Any]] = {}
    models = {}
    for variant, group, settings in (
        ("ours", None, {}),
        *((f"gloo_{cap}", gloo, {"bucket_cap_mb": cap}) for cap in GLOO_BUCKETS_MB),
    ):
        net, loss = build(name, rank)
        models[variant] = DistributedDataParallel(net, process_group=group, **settings)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
        functions[variant] = step_of(models[variant], loss, optimizer)
    net, loss = build(name, rank)
    # "plain" is a step without sums: the bare module, while the engine's threads sleep.
    functions["plain"] = step_of(net, loss, torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9))
    count = sum(parameter.numel() for parameter in net.parameters())
    flat = torch.zeros(count)
    engine = session.current()
    functions["sum"] = lambda: engine.all_reduce(flat.data_ptr(), count, "float32", op="average").wait()
    functions["gloo_sum"] = lambda: dist.all_reduce(flat, group=gloo)

    functions["backward"] = lambda: backward(loss(net))
    return functions, models["ours"]


def backward(value: torch.Tensor) -> float:
    """Return the seconds of a backward pass. Its forward must not count, so the caller has run it before."""
    began = time.perf_counter()
    value.backward()
    return time.perf_counter() - began


def readiness(net: torch.nn.Module, value: torch.Tensor) -> list[tuple[int, float]]:
    """Return the bytes of each gradient, and the seconds from the start of a backward until it is final, in order."""
    final: list[tuple[int, float]] = []
    began = time.perf_counter()
    hooks = [
        parameter.register_hook(lambda gradient: final.append((gradient.nbytes, time.perf_counter() - began)))
        for parameter in net.parameters()
    ]
    value.backward()
    for hook in hooks:
        hook.remove()
    return final


def main() -> None:
    name, repeats = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity") and (cores := sorted(os.sched_getaffinity(0))):
        os.sched_setaffinity(0, {cores[int(os.environ["RANK"]) % len(cores)]})
    install()
    dist.init_process_group("smddp")
    steps, ours = variants(name)
    seconds: dict[str, list[float]] = {variant: [] for variant in steps}
    for repeat in range(repeats + 3):
        # Rotate the order: each variant is first in turn, so that none always has cold caches.
        order = list(steps)[repeat % len(steps) :] + list(steps)[: repeat % len(steps)]
        for variant in order:
            dist.barrier()
            began = time.perf_counter()
            result = steps[variant]()
            elapsed = result if isinstance(result, float) else time.perf_counter() - began
            slowest = torch.tensor([elapsed], dtype=torch.float64)
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
            if repeat >= 3:  # in the first rounds DDP rebuilds its buckets, and TCP windows grow
                seconds[variant].append(slowest.item())
    if dist.get_rank() == 0:
        size = sum(parameter.numel() * parameter.element_size() for parameter in ours.parameters())
        buckets = ours.__dict__.get("bucket_bytes_cap_list") or []
        cost = session.cost()
        net, loss = build(name, 0)
        ready = [readiness(net, loss(net)) for _ in range(5)][1:]
        print(
            json.dumps(
                {"seconds": seconds, "gradient_bytes": size, "buckets": buckets, "ready": ready,
                 "alpha_s": cost.alpha_s, "beta_s": cost.beta_s, "core": session.current().stats().core}
            ), flush=True
        )  # fmt: skip
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
