"""Train a BERT to find answers, on any number of hosts. By default, train a small one on generated questions.

Usage: python examples/bert_squad/submit.py [--framework NAME] [--hosts 2] [--set NAME=VALUE] [--json]
       python examples/bert_squad/submit.py --train squad/train --test squad/dev --set pretrained=bert-base-uncased
           --instance-type ml.p4d.24xlarge --hosts 1 --ranks 8

The folders contain SQuAD v1.1's JSON files. The script is the same for all jobs; only `distribution` and the
hyperparameters differ.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import questions

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from common.submitting import (  # noqa: E402  the line above finds it
    arguments_of,
    framework_of,
    layout_of,
    report,
    settings_of,
    train,
)

# Determined AI published these settings for bert-base: 12 examples on each of 8 GPUs, two epochs, no warm-up.
FULL = {
    "epochs": 2, "rank-batch": 12, "lr": 3e-5, "base-batch": 96, "weight-decay": 0.0, "length": 384, "stride": 128,
    "precision": "bf16",
}  # fmt: skip
TINY = {
    "epochs": 8, "rank-batch": 8, "global-batch": 32, "lr": 2e-3, "warmup": 0.5, "length": 32, "stride": 8, "width": 48,
    "vocabulary": 200,
}  # fmt: skip


def main() -> None:
    parser = arguments_of(__doc__, HERE)
    parser.add_argument("--train", help="a folder or S3 address (default: generated questions)")
    parser.add_argument("--test", help="a folder or S3 address, for the evaluation")
    arguments = parser.parse_args()
    if (arguments.train is None) != (arguments.test is None):
        sys.exit("--train and --test need each other: give both or none")
    settings = settings_of(arguments, FULL if arguments.train else TINY)
    with tempfile.TemporaryDirectory() as folder:
        if not arguments.train:
            questions.write(Path(folder) / "train", paragraphs=200, seed=1)
            questions.write(Path(folder) / "test", paragraphs=40, seed=2)
        data = {"training": arguments.train or f"{folder}/train", "test": arguments.test or f"{folder}/test"}
        job = train(settings, data, **framework_of(arguments, HERE), **layout_of(arguments))
    report(job, ("eval_f1", "eval_exact_match"), as_json=arguments.json)


if __name__ == "__main__":
    main()
