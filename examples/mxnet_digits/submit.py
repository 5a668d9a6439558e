"""Train on digits with MXNet on two hosts, in both distributed ways, and compare the weights with one process.

Usage: python examples/mxnet_digits/submit.py [--data FOLDER] [--epochs 6] [--instance-type local] [--json]
"""

from __future__ import annotations

import argparse
import json
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from herringbone import MXNet, TrainingJob

HERE = Path(__file__).resolve().parent
METRICS = [{"Name": "test_accuracy", "Regex": r"test_accuracy=(\S+)"}]
DISTRIBUTIONS = {
    "parameter_server": {"parameter_server": {"enabled": True}},
    "mpi": {"mpi": {"enabled": True, "processes_per_host": 1}},
}


def write_data(folder: Path) -> None:
    """Write scikit-learn's 1,797 handwritten digits as arrays. Every fifth digit belongs to the test split."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = (digits.images / 16).astype(np.float32)[:, None]
    test = np.arange(len(images)) % 5 == 0
    np.savez(
        folder / "digits.npz",
        train_images=images[~test],
        train_labels=digits.target[~test],
        test_images=images[test],
        test_labels=digits.target[test],
    )


def start(strategy: str | None, data: str, *, epochs: int, instance_type: str = "local_process") -> TrainingJob:
    """Start training on two hosts with this strategy, or in one process for None."""
    return MXNet(
        "train.py",
        source_dir=str(HERE / "src"),
        base_job_name=f"digits-{(strategy or 'alone').replace('_', '-')}",
        instance_type=instance_type,
        instance_count=1 if strategy is None else 2,
        distribution=None if strategy is None else DISTRIBUTIONS[strategy],
        hyperparameters={"epochs": epochs},
        metric_definitions=METRICS,
        environment={"OMP_NUM_THREADS": "1"},
    ).fit({"training": data}, wait=False)


def weights(job: TrainingJob) -> dict[str, np.ndarray]:
    """Read the parameters from a job's model.tar.gz."""
    import mxnet as mx

    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(job.model_data.removeprefix("file://")) as archive:
            archive.extract("model.params", folder, filter="data")
        return {name: value.asnumpy() for name, value in mx.nd.load(f"{folder}/model.params").items()}


def compare(data: str, **settings: Any) -> dict[str, dict[str, float]]:
    """Train with all strategies. Return each one's accuracy, and the largest difference of a weight to one process."""
    jobs = {strategy: start(strategy, data, **settings) for strategy in (None, *DISTRIBUTIONS)}
    for job in jobs.values():
        job.wait(logs=True)
    alone, results = weights(jobs[None]), {}
    for strategy in DISTRIBUTIONS:
        distributed = weights(jobs[strategy])
        [accuracy] = [metric.value for metric in jobs[strategy].metrics() if metric.name == "test_accuracy"]
        difference = max(float(np.abs(distributed[name] - alone[name]).max()) for name in alone)
        results[strategy] = {"accuracy": accuracy, "difference": difference}
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="a folder with digits.npz (default: scikit-learn's digits)")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--instance-type", default="local_process", help="local for containers (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the results as one JSON line at the end")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.data is None:
            write_data(Path(folder))
        data = arguments.data or folder
        results = compare(data, epochs=arguments.epochs, instance_type=arguments.instance_type)
    for strategy, result in results.items():
        print(f"{strategy:16} test accuracy {result['accuracy']:.4f}, difference of weights {result['difference']:.1e}")
    if arguments.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
