"""Train a BERT on text, on any number of hosts. By default, train a small one on the texts of Python's help.

Usage: python examples/bert_pretrain/submit.py [--framework NAME] [--hosts 2] [--set NAME=VALUE] [--json]
       python examples/bert_pretrain/submit.py --data s3://bucket/wikipedia --instance-type ml.p4d.24xlarge
           --hosts 16 --ranks 128

The script is the same for all jobs; only `distribution` and the hyperparameters differ.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import topics

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

# BERT-large in the two phases of arXiv 1904.00962: 65,536 pairs of 128 tokens, then 32,768 pairs of 512 tokens, LAMB
# with a warm-up in both, rates that grow with the square root of the batch. An epoch of Wikipedia's 3 billion tokens
# has about 400 steps in the first phase and 200 in the second.
FULL = {
    "tokenizer": "bert-large-uncased", "width": 1024, "depth": 24, "heads": 16, "dropout": 0.1, "precision": "bf16",
    "optimizer": "lamb", "weight-decay": 0.01, "global-batch": 65536, "lr": 6e-3,
    "length": 128, "epochs": 18, "rank-batch": 64, "warmup": 5,
    "long-length": 512, "long-epochs": 8, "long-rank-batch": 32, "long-lr": 4e-3, "long-warmup": 1,
    "target": 0.72,
}  # fmt: skip
TINY = {
    "vocabulary": 2000, "width": 64, "depth": 2, "optimizer": "lamb", "weight-decay": 0.01, "global-batch": 16,
    "lr": 6e-3, "length": 32, "epochs": 5, "rank-batch": 4, "warmup": 1,
    "long-length": 64, "long-epochs": 1, "long-rank-batch": 2, "long-lr": 2e-3, "long-warmup": 0.2,
}  # fmt: skip


def main() -> None:
    parser = arguments_of(__doc__, HERE)
    parser.add_argument("--data", help="a folder or S3 address with train/ and test/, in the format of documents.py")
    arguments = parser.parse_args()
    settings = settings_of(arguments, FULL if arguments.data else TINY)
    with tempfile.TemporaryDirectory() as folder:
        if not arguments.data:
            topics.write(Path(folder))
        data = arguments.data or folder
        channels = {"training": f"{data}/train", "test": f"{data}/test"}
        job = train(settings, channels, **framework_of(arguments, HERE), **layout_of(arguments))
    report(job, ("eval_accuracy", "eval_next_accuracy", "eval_loss"), as_json=arguments.json)


if __name__ == "__main__":
    main()
