"""Measure the first step before it trains: trace, decide, send the decision, move; 1,000 modules with parameters.

Usage: python benchmarks/partition/first_step.py [--partitions 2] [--repeats 5]. The last line is JSON: medians in
seconds from the call of the step function until the model is partitioned, on the slowest rank.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from benchmarks.pipeline.ranks import Ranks
from torch import nn

import herringbone_parallel.torch.model_parallel.api as smp

BLOCKS, WIDTH, BATCH = 200, 32, 8


class Block(nn.Module):
    """Five modules with parameters: a normalised residual perceptron between two projections."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.after = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.after(self.narrow(torch.relu(self.wide(self.norm(self.before(x))))))


def first_step(arguments: dict[str, Any]) -> tuple[float, float]:
    """Run as one rank; return the seconds until the model is partitioned, and the seconds of a later step."""
    torch.manual_seed(0)
    model = smp.DistributedModel(nn.Sequential(*(Block() for _ in range(BLOCKS))), **arguments)
    optimizer = smp.DistributedOptimizer(torch.optim.Adam(model.parameters()))

    @smp.step
    def train(inputs: torch.Tensor) -> torch.Tensor:
        loss = model(inputs).square().mean()
        model.backward(loss)
        return loss

    inputs = torch.randn(BATCH, WIDTH)
    smp.barrier()
    start = time.perf_counter()
    ready: list[float] = []
    model.register_post_partition_hook(lambda _: ready.append(time.perf_counter() - start))
    for _ in range(3):
        last = time.perf_counter()
        optimizer.zero_grad()
        train(inputs)
        optimizer.step()
    return ready[0], time.perf_counter() - last


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "estimated": ({}, {}),
    "clocked": ({}, {"trace_execution_times": True}),
    "skip_tracing": ({"skip_tracing": True}, {}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    timings: dict[str, list[tuple[float, float]]] = {name: [] for name in CASES}
    with Ranks(options.partitions) as ranks:
        for _ in range(options.repeats):
            for name, (settings, arguments) in CASES.items():
                parameters = {"partitions": options.partitions, "microbatches": 4, **settings}
                answers = ranks.run(first_step, parameters, arguments)
                timings[name].append((max(first for first, _ in answers), max(later for _, later in answers)))
    medians = {
        name: [round(statistics.median(column), 3) for column in zip(*rows, strict=True)]
        for name, rows in timings.items()
    }
    for name, (first, later) in medians.items():
        print(f"{name:13} {first:.2f} s before the first step trains; a later step {later:.2f} s")
    print(json.dumps({"modules": 5 * BLOCKS, **{f"{name}_s": first for name, (first, _) in medians.items()}}))


if __name__ == "__main__":
    main()
