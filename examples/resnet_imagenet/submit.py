"""Trains a ResNet on any number of hosts; by itself a small one on scikit-learn's digits, with --data photographs.

Usage: python examples/resnet_imagenet/submit.py [--hosts 2] [--json]
       python examples/resnet_imagenet/submit.py --data s3://bucket/imagenet --instance-type ml.p4d.24xlarge
           --hosts 4 --ranks 32

The dict and the hyperparameters say all there is to say; the script is the same.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import digits

from herringbone import PyTorch, TrainingJob

HERE = Path(__file__).resolve().parent
# The recipe of arXiv 1903.12650 (ResNet-50 in 74.7 s): half precision with updates in fp32, LARS, warm-up, label
# smoothing, tuned BatchNorm, equal weights from one seed. Its rates were not published; these begin a search.
FULL = {
    "model": "resnet50", "image-size": 224, "epochs": 90, "rank-batch": 256, "precision": "bf16", "optimizer": "lars",
    "lr": 9.0, "base-batch": 8192, "warmup": 5, "weight-decay": 5e-5, "smoothing": 0.1,
    "tune-batch-norm": True, "bn-base-batch": 256, "workers": 8, "target": 0.759, "require-target": True,
}  # fmt: skip
TINY = {
    "model": "small", "image-size": 8, "augment": False, "epochs": 3, "rank-batch": 8, "global-batch": 32,
    "optimizer": "lars", "lr": 1.0, "trust": 0.01, "warmup": 0.5, "smoothing": 0.1,
    "tune-batch-norm": True, "bn-base-batch": 8,
}  # fmt: skip


def train(settings: dict[str, Any], data: dict[str, str], *, hosts: int, ranks: int, instance_type: str) -> TrainingJob:
    """Run one job; what does not fit into a step at once is added up by the dict's `aggregation_frequency`."""
    frequency = settings["global-batch"] // (settings["rank-batch"] * ranks)
    estimator = PyTorch(
        "train.py",
        source_dir=str(HERE / "src"),
        dependencies=[str(HERE.parent / "common")],
        base_job_name="resnet",
        instance_type=instance_type,
        instance_count=hosts,
        hyperparameters=settings,
        distribution={
            "smdistributed": {"dataparallel": {"enabled": True, "aggregation_frequency": max(frequency, 1)}},
        },
        # One core a rank where there are no GPUs: the same arithmetic, whatever the machine.
        environment={"OMP_NUM_THREADS": "1"} if instance_type.startswith("local_process") else {},
    )
    return estimator.fit(data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="a folder with train/ and test/, as images.py describes them; or its address")
    parser.add_argument("--instance-type", default="local_process")
    parser.add_argument("--hosts", type=int, default=1)
    parser.add_argument("--ranks", type=int, help="of all hosts (default: one a host)")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="another hyperparameter")
    parser.add_argument("--json", action="store_true", help="print the metrics as one JSON line at the end")
    arguments = parser.parse_args()
    ranks = arguments.ranks or arguments.hosts
    settings: dict[str, Any] = dict(FULL if arguments.data else TINY)
    settings.setdefault("global-batch", settings["rank-batch"] * ranks)
    for pair in arguments.set:
        name, equals, value = pair.partition("=")
        if not equals:
            sys.exit(f"--set {pair}: write it as NAME=VALUE")
        settings[name] = json.loads(value) if value[:1].isdigit() else value
    where = {"hosts": arguments.hosts, "ranks": ranks, "instance_type": arguments.instance_type}
    with tempfile.TemporaryDirectory() as folder:
        if not arguments.data:
            digits.write(Path(folder))
        data = arguments.data or folder
        job = train(settings, {"training": f"{data}/train", "test": f"{data}/test"}, **where)
    figures = {metric.name: metric.value for metric in job.metrics()}
    print(f"\nmodel     {job.model_data}")
    for name in ("eval_accuracy", "run_seconds", "throughput", "scaling_efficiency", "seconds_to_target"):
        if name in figures:
            print(f"{name:<20} {figures[name]:.4g}")
    if arguments.json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
