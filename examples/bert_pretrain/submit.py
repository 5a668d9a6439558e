"""Trains a BERT on text, on any number of hosts; by itself a small one on the texts of Python's help.

Usage: python examples/bert_pretrain/submit.py [--hosts 2] [--set NAME=VALUE] [--json]
       python examples/bert_pretrain/submit.py --data s3://bucket/wikipedia --instance-type ml.p4d.24xlarge
           --hosts 16 --ranks 128

The dict and the hyperparameters say all there is to say; the script is the same.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import topics

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from common.submitting import arguments_of, report, settings_of, train, where_of  # noqa: E402  the examples' own

# BERT-large in two phases as arXiv 1904.00962 has them: 65,536 pairs of 128 tokens, then 32,768 of 512, LAMB with a
# warm-up in both, rates by the square root of the batch. Of Wikipedia's 3 billion tokens an epoch is about 400 and 200
# steps.
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
    parser = arguments_of(__doc__)
    parser.add_argument("--data", help="a folder with train/ and test/, as documents.py describes them; or its address")
    arguments = parser.parse_args()
    settings = settings_of(arguments, FULL if arguments.data else TINY)
    with tempfile.TemporaryDirectory() as folder:
        if not arguments.data:
            topics.write(Path(folder))
        data = arguments.data or folder
        channels = {"training": f"{data}/train", "test": f"{data}/test"}
        job = train(settings, channels, source=HERE / "src", **where_of(arguments))
    report(job, ("eval_accuracy", "eval_next_accuracy", "eval_loss"), as_json=arguments.json)


if __name__ == "__main__":
    main()
