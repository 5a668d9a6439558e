"""Time a training step split over processes: ours, `torch.distributed.pipelining`, and one process, in turn.

Usage: python benchmarks/pipeline/run.py --partitions 2 --microbatches 8 --pipeline interleaved [--repeats 15]
The last line is JSON: medians in seconds, `efficiency` = single / (partitions x ours), `theory` = m / (m + p - 1).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import socket
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
import workload
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

import herringbone_parallel.torch.model_parallel.api as smp

THEIRS = {"simple": ScheduleGPipe, "interleaved": Schedule1F1B}


def ours(partitions: int, kept: workload.Kept | None) -> tuple[Callable[[], float], nn.Module]:
    module = workload.build(kept)
    for index, block in enumerate(module):
        for inner in block.modules():
            inner.__dict__["_smp_partition"] = index * partitions // workload.BLOCKS
    model = smp.DistributedModel(module)

    @smp.step
    def train(inputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        loss = workload.loss_of(model(inputs), target)
        model.backward(loss)
        return loss

    inputs, target = workload.data()

    # The rank owns its parameters only after the first step, in which the model is partitioned.
    parameters: list[nn.Parameter] = []

    def step() -> float:
        forget(parameters)
        loss = train(inputs, target).reduce_mean().item()
        parameters[:] = parameters or model.local_parameters()
        return loss

    return step, module


def theirs(arguments: argparse.Namespace, rank: int, kept: workload.Kept | None) -> tuple[Callable[[], Any], nn.Module]:
    model = workload.build(kept)
    share = workload.BLOCKS // arguments.partitions
    part = model[rank * share : (rank + 1) * share]
    stage = PipelineStage(part, rank, arguments.partitions, torch.device("cpu"))
    schedule = THEIRS[arguments.pipeline](stage, arguments.microbatches, loss_fn=workload.loss_of)
    inputs, target = workload.data()

    parameters = list(part.parameters())

    def step() -> None:
        forget(parameters)
        schedule.step(*((inputs,) if rank == 0 else ()), target=target if rank == arguments.partitions - 1 else None)

    return step, part


def single(microbatches: int) -> Callable[[], Any]:
    model = workload.build()
    inputs, target = workload.data()

    parameters = list(model.parameters())

    def step() -> None:
        forget(parameters)
        for part, part_target in zip(inputs.chunk(microbatches), target.chunk(microbatches), strict=True):
            (workload.loss_of(model(part), part_target) / microbatches).backward()

    return step


def forget(parameters: Iterable[nn.Parameter]) -> None:
    """Drop these gradients, as an optimizer's `zero_grad` does."""
    for parameter in parameters:
        parameter.grad = None


def timed(step: Callable[[], Any]) -> float:
    dist.barrier()
    start = time.perf_counter()
    step()
    dist.barrier()
    return time.perf_counter() - start


def run_rank(rank: int, port: int, arguments: argparse.Namespace, answers: Any) -> None:
    torch.set_num_threads(1)
    parameters = {
        "partitions": arguments.partitions,
        "microbatches": arguments.microbatches,
        "pipeline": arguments.pipeline,
        "auto_partition": False,
        "default_partition": 0,
    }
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(arguments.partitions), MASTER_ADDR="127.0.0.1",
        LOCAL_WORLD_SIZE=str(arguments.partitions), MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo",
        SM_HP_MP_PARAMETERS=json.dumps(parameters),
    )  # fmt: skip
    smp.init()
    kept = workload.Kept()
    step, module = ours(arguments.partitions, kept)
    step()
    step()
    for block in module:
        block.kept = None
    cases: dict[str, Callable[[], Any]] = {"ours": step, "torch": theirs(arguments, rank, None)[0]}
    cases["single"] = single(arguments.microbatches) if rank == 0 else lambda: None
    times: dict[str, list[float]] = {name: [] for name in cases}
    names = list(cases)
    for repeat in range(-2, arguments.repeats):
        # Each case is first in turn: the case after `single` has cold caches, and a rank that was idle.
        for name in names[repeat % len(names) :] + names[: repeat % len(names)]:
            seconds = timed(cases[name])
            if repeat >= 0:
                times[name].append(seconds)
    answers.put((rank, times, kept.peak))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--partitions", type=int, default=2, choices=[2, 4])
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--pipeline", choices=sorted(THEIRS), default="interleaved")
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    ranks = [
        context.Process(target=run_rank, args=(rank, port, arguments, answers)) for rank in range(arguments.partitions)
    ]
    for process in ranks:
        process.start()
    results = sorted(answers.get() for _ in ranks)
    for process in ranks:
        process.join()
    times = results[0][1]
    median = {name: statistics.median(values) for name, values in times.items()}
    for name, values in times.items():
        print(f"{name:8} {median[name]:.4f} s  [{min(values):.4f} {max(values):.4f}]")
    p, m = arguments.partitions, arguments.microbatches
    pairs = [a / b for a, b in zip(times["ours"], times["torch"], strict=True)]
    print(
        json.dumps(
            {
                "ours_s": round(median["ours"], 4),
                "torch_s": round(median["torch"], 4),
                "single_s": round(median["single"], 4),
                "ours_over_torch": round(statistics.median(pairs), 3),
                "efficiency": round(median["single"] / (p * median["ours"]), 3),
                "theory": round(m / (m + p - 1), 3),
                "peak_activation_bytes": [peak for _, _, peak in results],
            }
        )
    )


if __name__ == "__main__":
    main()
