"""Measure the accuracy that a batch 32 times as large costs, with and without the recipe: digits, five seeds.

Usage: python examples/resnet_imagenet/study.py [--seeds 5] [--epochs 16]        writes study.svg, prints the table
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "src"), str(HERE.parent)]
import train  # noqa: E402  in a job, the script's folder is on the path too
from common import digits  # noqa: E402
from common.study import ONE_PROCESS, as_arguments, compare, train_and_evaluate  # noqa: E402

BASE, TIMES = 8, 32
COMMON = {"model": "small", "image-size": 8, "augment": False, "weight-decay": 1e-4, "base-batch": BASE}
LARGE = {"global-batch": BASE * TIMES, "rank-batch": BASE * TIMES}
VARIANTS = {
    f"SGD, batch {BASE}": {"global-batch": BASE, "rank-batch": BASE, "lr": 0.2},
    f"SGD, batch {BASE * TIMES}, rate x {TIMES}": {**LARGE, "lr": 0.2},
    f"LARS recipe, batch {BASE * TIMES}": {
        **LARGE, "optimizer": "lars", "lr": 4 / TIMES, "trust": 0.01, "warmup": 2, "smoothing": 0.1,
        "tune-batch-norm": True, "bn-base-batch": 32,
    },
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=16)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        digits.write(Path(folder))

        def accuracy(settings: dict[str, object]) -> float:
            parsed = train.parse(as_arguments({**COMMON, **settings, "epochs": arguments.epochs}))
            training = train.Training(parsed, ONE_PROCESS, Path(folder, "train"), Path(folder, "test"))
            return 100 * train_and_evaluate(training)["eval_accuracy"]

        title = f"Digits, test accuracy after {arguments.epochs} epochs, {arguments.seeds} seeds"
        compare(VARIANTS, accuracy, seeds=arguments.seeds, picture=HERE / "study.svg", title=title, least=60)


if __name__ == "__main__":
    main()
