"""What a batch 32 times as large costs, and what the recipe wins back: digits, the same epochs, five seeds.

Usage: python examples/resnet_imagenet/study.py [--seeds 5] [--epochs 16]        writes study.svg, prints the table

In one process, so that nothing but the recipe differs; the script's own training code is what runs.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

import digits
import plot
import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "src"), str(HERE.parent)]
import train  # noqa: E402  a script's own folder, as in a job
from common.world import World  # noqa: E402

BASE, TIMES = 8, 32
COMMON = {"model": "small", "image-size": 8, "augment": False, "weight-decay": 1e-4, "base-batch": BASE}
LARGE = {"global-batch": BASE * TIMES, "rank-batch": BASE * TIMES}
WAYS = {
    f"SGD, batch {BASE}": {"global-batch": BASE, "rank-batch": BASE, "lr": 0.2},
    f"SGD, batch {BASE * TIMES}, rate x {TIMES}": {**LARGE, "lr": 0.2},
    f"LARS recipe, batch {BASE * TIMES}": {
        **LARGE, "optimizer": "lars", "lr": 4 / TIMES, "trust": 0.01, "warmup": 2, "smoothing": 0.1,
        "tune-batch-norm": True, "bn-base-batch": 32,
    },
}  # fmt: skip


def accuracy(settings: dict[str, object], folder: Path) -> float:
    """Train once, and return the accuracy on the test images in percent."""
    parsed = train.parse([f"--{name}={value}" for name, value in settings.items()])
    training = train.Training(parsed, World(0, 1, torch.device("cpu")), folder / "train", folder / "test")
    for epoch in range(parsed.epochs):
        for _ in training.epoch(epoch):
            pass
    return 100 * training.accuracy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=16)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        digits.write(Path(folder))
        for name, settings in WAYS.items():
            for seed in range(1, arguments.seeds + 1):
                trained = {**COMMON, **settings, "seed": seed, "epochs": arguments.epochs}
                found.setdefault(name, []).append(accuracy(trained, Path(folder)))
            print(f"{name}: {' '.join(f'{value:.1f}' for value in found[name])}", flush=True)
    base = statistics.mean(next(iter(found.values())))
    print(
        f"\n| {arguments.epochs} epochs | " + " | ".join(f"seed {1 + index}" for index in range(arguments.seeds)),
        end="",
    )
    print(" | mean | to the base |\n" + "|---" * (arguments.seeds + 3) + "|")
    for name, values in found.items():
        mean = statistics.mean(values)
        print(f"| {name} | {' | '.join(f'{value:.1f}' for value in values)} | **{mean:.1f}** | {mean - base:+.1f} |")
    title = f"Digits, test accuracy after {arguments.epochs} epochs, {arguments.seeds} seeds"
    (HERE / "study.svg").write_text(plot.draw(found, title))


if __name__ == "__main__":
    main()
