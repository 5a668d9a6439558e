"""Several ways of training the same model, each from several seeds: a table and a picture.

In one process, so that nothing but the settings differs; the script's own training code is what runs.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from common import plot
from common.loop import Training
from common.world import World

ALONE = World(0, 1, torch.device("cpu"))
Settings = dict[str, Any]


def as_arguments(settings: Settings) -> list[str]:
    """Return hyperparameters as a script's command line has them."""
    return [f"--{name}={value}" for name, value in settings.items()]


def trained(training: Training) -> dict[str, float]:
    """Train to the end, and evaluate."""
    for epoch in range(training.epochs):
        for _ in training.epoch(epoch):
            pass
    return training.evaluate()


def compare(
    ways: dict[str, Settings], score: Callable[[Settings], float], *, seeds: int, picture: Path, title: str, least: int
) -> None:
    """Print the score in percent of each way and seed as a table, the mean beside the first way's; draw it too."""
    torch.set_num_threads(1)
    found: dict[str, list[float]] = {}
    for name, settings in ways.items():
        found[name] = [score({**settings, "seed": seed}) for seed in range(1, seeds + 1)]
        print(f"{name}: {' '.join(f'{value:.1f}' for value in found[name])}", flush=True)
    base = statistics.mean(next(iter(found.values())))
    print("\n| | " + " | ".join(f"seed {1 + index}" for index in range(seeds)) + " | mean | to the base |")
    print("|---" * (seeds + 3) + "|")
    for name, values in found.items():
        mean = statistics.mean(values)
        print(f"| {name} | {' | '.join(f'{value:.1f}' for value in values)} | **{mean:.1f}** | {mean - base:+.1f} |")
    picture.write_text(plot.draw(found, title, least=least))
