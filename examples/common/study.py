"""Train several variants of the same model with several seeds each, and write a table and a picture.

All runs share one process and the example's own training code, so only the settings differ.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from common import plot
from common.for_torch.world import World
from common.loop import Training

ONE_PROCESS = World(0, 1, torch.device("cpu"))
Settings = dict[str, Any]


def as_arguments(settings: Settings) -> list[str]:
    """Return hyperparameters as the command line of a script."""
    return [f"--{name}={value}" for name, value in settings.items()]


def train_and_evaluate(training: Training) -> dict[str, float]:
    """Train all epochs, then evaluate once."""
    for epoch in range(training.epochs):
        for _ in training.epoch(epoch):
            pass
    return training.evaluate()


def compare(
    variants: dict[str, Settings],
    score: Callable[[Settings], float],
    *,
    seeds: int,
    picture: Path,
    title: str,
    least: int,
) -> None:
    """Print a table with the score of each variant and seed in percent, and draw it. The first variant is the base."""
    torch.set_num_threads(1)  # one thread adds in one order, so a table can be reproduced
    scores: dict[str, list[float]] = {}
    for name, settings in variants.items():
        scores[name] = [score({**settings, "seed": seed}) for seed in range(1, seeds + 1)]
        print(f"{name}: {' '.join(f'{value:.1f}' for value in scores[name])}", flush=True)
    base = statistics.mean(next(iter(scores.values())))
    print("\n| | " + " | ".join(f"seed {1 + index}" for index in range(seeds)) + " | mean | to the base |")
    print("|---" * (seeds + 3) + "|")
    for name, values in scores.items():
        mean = statistics.mean(values)
        print(f"| {name} | {' | '.join(f'{value:.1f}' for value in values)} | **{mean:.1f}** | {mean - base:+.1f} |")
    picture.write_text(plot.draw(scores, title, least=least))
