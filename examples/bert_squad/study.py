"""What it costs to make a step of many backwards: AdamW and RAdam, 1, 10 and 100 of them, the same epochs.

Usage: python examples/bert_squad/study.py [--seeds 3] [--epochs 5]        writes study.svg, prints the table
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import made

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "src"), str(HERE.parent)]
import train  # noqa: E402  a script's own folder, as in a job
from common.study import ALONE, as_arguments, compare, trained  # noqa: E402

# As the article has it: the rate stays what it was for one backward a step, and there is no warm-up.
COMMON = {"lr": 3e-3, "length": 32, "stride": 8, "width": 48, "vocabulary": 200}
BATCH = 8
WAYS = {
    # Ten backwards of 8 examples are one of 80 (to 1e-6: tests/parallel/torch/data_parallel), which takes less time.
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
        made.write(Path(folder, "train"), paragraphs=arguments.paragraphs, seed=1)
        made.write(Path(folder, "test"), paragraphs=100, seed=2)

        def score(settings: dict[str, object]) -> float:
            chosen = {**COMMON, **settings, "epochs": arguments.epochs, "lr": arguments.lr}
            parsed = train.parse(as_arguments(chosen))
            training = train.Training(parsed, ALONE, Path(folder, "train"), Path(folder, "test"))
            return trained(training)["eval_f1"]

        title = f"F1 after {arguments.epochs} epochs by optimizer and aggregation frequency, {arguments.seeds} seeds"
        compare(WAYS, score, seeds=arguments.seeds, picture=HERE / "study.svg", title=title, least=0)


if __name__ == "__main__":
    main()
