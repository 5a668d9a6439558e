"""Trains a BERT to find answers, on any number of hosts; by itself a small one on made questions.

Usage: python examples/bert_squad/submit.py [--hosts 2] [--set NAME=VALUE] [--json]
       python examples/bert_squad/submit.py --train squad/train --test squad/dev --set pretrained=bert-base-uncased
           --instance-type ml.p4d.24xlarge --hosts 1 --ranks 8

Folders hold SQuAD v1.1's JSON files. The dict and the hyperparameters say all there is to say; the script is the same.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import made

from herringbone import PyTorch, TrainingJob

HERE = Path(__file__).resolve().parent
# Determined AI's published settings for bert-base: 12 examples on each of 8 GPUs, two epochs, no warm-up.
FULL = {
    "epochs": 2, "rank-batch": 12, "lr": 3e-5, "base-batch": 96, "weight-decay": 0.0, "length": 384, "stride": 128,
    "precision": "bf16",
}  # fmt: skip
TINY = {
    "epochs": 8, "rank-batch": 8, "global-batch": 32, "lr": 2e-3, "warmup": 0.5, "length": 32, "stride": 8, "width": 48,
    "vocabulary": 200,
}  # fmt: skip


def train(settings: dict[str, Any], data: dict[str, str], *, hosts: int, ranks: int, instance_type: str) -> TrainingJob:
    """Run one job; what does not fit into a step at once is added up by the dict's `aggregation_frequency`."""
    frequency = max(1, settings["global-batch"] // (settings["rank-batch"] * ranks))
    return PyTorch(
        "train.py",
        source_dir=str(HERE / "src"),
        dependencies=[str(HERE.parent / "common")],
        base_job_name="squad",
        instance_type=instance_type,
        instance_count=hosts,
        hyperparameters=settings,
        distribution={"smdistributed": {"dataparallel": {"enabled": True, "aggregation_frequency": frequency}}},
        # One core a rank where there are no GPUs: the same arithmetic, whatever the machine.
        environment={"OMP_NUM_THREADS": "1"} if instance_type.startswith("local_process") else {},
    ).fit(data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train", help="a folder, or its address; without it, questions are made")
    parser.add_argument("--test", help="the same, to evaluate on")
    parser.add_argument("--instance-type", default="local_process")
    parser.add_argument("--hosts", type=int, default=1)
    parser.add_argument("--ranks", type=int, help="of all hosts (default: one a host)")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="another hyperparameter")
    parser.add_argument("--json", action="store_true", help="print the metrics as one JSON line at the end")
    arguments = parser.parse_args()
    if (arguments.train is None) != (arguments.test is None):
        sys.exit("--train and --test come together")
    ranks = arguments.ranks or arguments.hosts
    settings: dict[str, Any] = dict(FULL if arguments.train else TINY)
    settings.setdefault("global-batch", settings["rank-batch"] * ranks)
    for pair in arguments.set:
        name, equals, value = pair.partition("=")
        if not equals:
            sys.exit(f"--set {pair}: write it as NAME=VALUE")
        settings[name] = json.loads(value) if value[:1].isdigit() else value
    with tempfile.TemporaryDirectory() as folder:
        if not arguments.train:
            made.write(Path(folder) / "train", paragraphs=200, seed=1)
            made.write(Path(folder) / "test", paragraphs=40, seed=2)
        data = {"training": arguments.train or f"{folder}/train", "test": arguments.test or f"{folder}/test"}
        job = train(settings, data, hosts=arguments.hosts, ranks=ranks, instance_type=arguments.instance_type)
    figures = {metric.name: metric.value for metric in job.metrics()}
    print(f"\nmodel     {job.model_data}")
    for name in ("eval_f1", "eval_exact_match", "run_seconds", "throughput", "scaling_efficiency", "seconds_to_target"):
        if name in figures:
            print(f"{name:<20} {figures[name]:.4g}")
    if arguments.json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
