"""Measure the cost of large aggregation frequencies: AdamW and RAdam at 1, 10 and 100, for the same number of epochs.

Usage: python examples/bert_squad/study.py [--seeds 3] [--epochs 5]        writes study.svg, prints the table
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import questions

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "src"), str(HERE / "shared"), str(HERE.parent)]
import train  # noqa: E402  in a job, the script's folder is on the path too
from common.study import ONE_PROCESS, as_arguments, compare, train_and_evaluate  # noqa: E402

# As in the article, the rate is that of one backward per step at every frequency, and there is no warm-up.
COMMON = {"lr": 3e-3, "length": 32, "stride": 8, "width": 48, "vocabulary": 200}
BATCH = 8
VARIANTS = {
    # One backward of 80 examples is faster than ten of 8, and equal to 1e-6 (tests/parallel/torch/data_parallel).
    f"{name}, {frequency}": {
        "optimizer": optimizer,
        "global-batch": BATCH * frequency,
        "rank-batch": BATCH * min(frequency, 10),
    }
    for name, optimizer in (("AdamW", "adamw"), ("RAdam", "radam"))
    for frequency in (1, 10, 100)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=COMMON["lr"])
    parser.add_argument("--paragraphs", type=int, default=1600)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        questions.write(Path(folder, "train"), paragraphs=arguments.paragraphs, seed=1)
        questions.write(Path(folder, "test"), paragraphs=100, seed=2)

        def score(settings: dict[str, object]) -> float:
            variant = {**COMMON, **settings, "epochs": arguments.epochs, "lr": arguments.lr}
            parsed = train.parse(as_arguments(variant))
            training = train.Training(parsed, ONE_PROCESS, Path(folder, "train"), Path(folder, "test"))
            return train_and_evaluate(training)["eval_f1"]

        title = f"F1 after {arguments.epochs} epochs by optimizer and aggregation frequency, {arguments.seeds} seeds"
        compare(VARIANTS, score, seeds=arguments.seeds, picture=HERE / "study.svg", title=title, least=0)


if __name__ == "__main__":
    main()
