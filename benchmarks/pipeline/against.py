"""Compare a training step of this checkout with one of another checkout, on a small model whose cost is the runtime's.

Usage: python benchmarks/pipeline/against.py --checkout ../before [--rounds 40] [--steps 30]. The last line is JSON:
`ratio` is the median of the rounds' ratios, this checkout / the other; `interval` has the median with 95 % probability.

    git worktree add ../before COMMIT

Each checkout has ranks of its own. A round trains with one and then with the other, and the next round in reverse
order. `--checkout .` shows the noise of the machine.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from pathlib import Path

import torch
from ranks import Ranks
from torch import nn

BLOCKS, WIDTH, BATCH, WARM_UP = 8, 64, 64, 5
PACKAGES = ("contract", "sdk", "entrypoints", "parallel")


def train(checkout: str, steps: int) -> list[float]:
    """Return the times of this rank's steps; the first ones partition the model and look at what it keeps."""
    import herringbone_parallel.torch.model_parallel.api as smp

    if Path(checkout) not in Path(smp.__file__).parents:
        raise ImportError(f"the ranks of {checkout} import {smp.__file__}")
    torch.manual_seed(1)
    module = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(BLOCKS)))
    for index, block in enumerate(module):
        smp.set_partition(block, index * smp.pp_size() // BLOCKS)
    model = smp.DistributedModel(module)

    @smp.step
    def step(inputs: torch.Tensor) -> torch.Tensor:
        loss = model(inputs).square().mean()
        model.backward(loss)
        return loss

    inputs, times = torch.randn(BATCH, WIDTH), []
    for _ in range(WARM_UP + steps):
        begin = time.perf_counter()
        step(inputs).reduce_mean()
        times.append(time.perf_counter() - begin)
    return times[WARM_UP:]


def start(checkout: Path, partitions: int) -> Ranks:
    """Start ranks that import the packages of a checkout; a spawned process takes over the path of its parent."""
    path = list(sys.path)
    sys.path[1:1] = [str(checkout / package) for package in PACKAGES]
    try:
        return Ranks(partitions)
    finally:
        sys.path[:] = path


def interval(ratios: list[float]) -> list[float]:
    """Return bounds of the median by resampling."""
    draw = random.Random(1)  # noqa: S311  no secret
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(4000))
    return [round(medians[100], 4), round(medians[-101], 4)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkout", type=Path, required=True)
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--steps", type=int, default=30)
    arguments = parser.parse_args()
    parameters = {
        "partitions": arguments.partitions,
        "microbatches": arguments.microbatches,
        "auto_partition": False,
        "default_partition": 0,
    }
    checkouts = (Path(__file__).resolve().parents[2], arguments.checkout.resolve())
    ratios, steps = [], []
    with start(checkouts[0], arguments.partitions) as this, start(checkouts[1], arguments.partitions) as other:
        for number in range(arguments.rounds):
            medians = [0.0, 0.0]
            for turn in (0, 1) if number % 2 else (1, 0):
                times = (this, other)[turn].run(train, parameters, str(checkouts[turn]), arguments.steps)
                medians[turn] = statistics.median(times[0])
            ratios.append(medians[0] / medians[1])
            steps.append(medians[0])
    print(
        json.dumps(
            {
                "step_ms": round(statistics.median(steps) * 1e3, 2),
                "ratio": round(statistics.median(ratios), 4),
                "interval": interval(ratios),
            }
        )
    )


if __name__ == "__main__":
    main()
