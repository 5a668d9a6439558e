"""Compare the predicted seconds of a partition with the CPU time that each rank then takes.

Usage: python benchmarks/partition/prediction.py [--microbatches 8] [--steps 6]. The last line is JSON. It
measures CPU time rather than the clock, because other work on the machine disturbs that less. Each model is split by
estimates and by the clock. `share` is the mean error of the ranks' shares of the work, `seconds` the mean error of the
seconds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from benchmarks.pipeline.ranks import Ranks
from torch import nn

import herringbone_parallel.torch.model_parallel.api as smp
from herringbone_contract.model_parallel.partition_file import PartitionFile, parse


def transformer() -> tuple[nn.Module, torch.Tensor]:
    """Blocks of one width, and a head four times as wide as a block is deep."""
    layers = [nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True) for _ in range(6)]
    return nn.Sequential(*layers, nn.Linear(256, 4096)), torch.randn(16, 64, 256)


def convolutions() -> tuple[nn.Module, torch.Tensor]:
    """Large images with few channels, then small ones with many: activations come first, parameters last."""
    channels = [3, 16, 32, 64, 128, 256]
    stages = [
        nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, 2, 1),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1),
        )
        for inputs, outputs in itertools.pairwise(channels)
    ]
    return nn.Sequential(*stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 100)), torch.randn(
        16, 3, 96, 96
    )


def recurrent() -> tuple[nn.Module, torch.Tensor]:
    """An embedding, an LSTM whose operation no formula counts, and a perceptron."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.lstm = nn.Embedding(2000, 128), nn.LSTM(128, 256, batch_first=True)
            self.wide, self.head = nn.Linear(256, 1024), nn.Linear(1024, 2000)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.head(torch.relu(self.wide(self.lstm(self.embed(tokens))[0])))

    return Net(), torch.randint(0, 2000, (16, 32))


MODELS = {"transformer": transformer, "convolutions": convolutions, "recurrent": recurrent}


def train(name: str, clock: bool, microbatches: int, steps: int) -> float:
    """Train as one rank; return the CPU seconds of one microbatch, the median of the steps."""
    torch.manual_seed(0)
    module, inputs = MODELS[name]()
    model = smp.DistributedModel(module, trace_execution_times=clock)

    @smp.step
    def step(inputs: torch.Tensor) -> torch.Tensor:
        loss = model(inputs).square().mean()
        model.backward(loss)
        return loss

    took = []
    for _ in range(2 + steps):
        smp.barrier()
        start = time.process_time()
        step(inputs)
        took.append(time.process_time() - start)
        model.zero_grad()
    return statistics.median(took[2:]) / microbatches


def errors(file: PartitionFile, measured: list[float]) -> tuple[float, float]:
    """Return the mean error of the predicted shares, and of the predicted seconds."""
    expected = [load.seconds + load.communication_seconds for load in file.loads]
    ratio = math.fsum(measured) / math.fsum(expected)
    share = [a / b * ratio - 1 for a, b in zip(expected, measured, strict=True)]
    seconds = [a / b - 1 for a, b in zip(expected, measured, strict=True)]
    return statistics.mean(map(abs, share)), statistics.mean(map(abs, seconds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--steps", type=int, default=6)
    options = parser.parse_args()
    rows = []
    with Ranks(4) as ranks, tempfile.TemporaryDirectory() as folder:
        for name in MODELS:
            for partitions in (2, 4):
                for clock in (False, True):
                    path = Path(folder) / f"{name}-{partitions}-{clock}.json"
                    parameters = {"partitions": partitions, "microbatches": options.microbatches, "optimize": "speed"}
                    measured = ranks.run(
                        train,
                        {**parameters, "partition_file": str(path)},
                        name,
                        clock,
                        options.microbatches,
                        options.steps,
                    )
                    file = parse(path.read_bytes())
                    share, seconds = errors(file, measured)
                    how = "clocked" if clock else "estimated"
                    rows.append(
                        {"model": name, "partitions": partitions, "how": how, "share": share, "seconds": seconds}
                    )
                    loads = [round(1e3 * (load.seconds + load.communication_seconds), 2) for load in file.loads]
                    cpu = [round(1e3 * one, 2) for one in measured]
                    print(
                        f"| {name} | {partitions} | {how} | {loads} | {cpu} | {share:.0%} | {seconds:.0%} |", flush=True
                    )
    print(
        json.dumps(
            {
                "rows": [
                    {key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()}
                    for row in rows
                ]
            }
        )
    )


if __name__ == "__main__":
    main()
