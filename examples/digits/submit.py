"""Train a network that is split over two processes, and compare it with a one-process run of the same seed.

Usage: python examples/digits/submit.py [--epochs 6] [--pipeline simple] [--instance-type ssh:hosts.yaml] [--hosts 3]
       [--json]
       python examples/digits/submit.py --instance-type k8s:team-a --hosts 2 --image-uri REGISTRY/IMAGE
       --output-path pvc://CLAIM/FOLDER
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import tqdm
from sklearn.datasets import load_digits

from herringbone import PyTorch, TrainingJob

HERE = Path(__file__).resolve().parent
METRICS = [
    {"Name": "loss", "Regex": r"loss=(\S+)"},
    {"Name": "test_accuracy", "Regex": r"test_accuracy=(\S+)"},
]


def write_data(folder: Path) -> None:
    """Write scikit-learn's 1,797 handwritten digits as arrays. Every fifth digit belongs to the test split."""
    digits = load_digits()
    images = (digits.images / 16).astype(np.float32)[:, None]
    labels = digits.target.astype(np.int64)
    test = np.arange(len(labels)) % 5 == 0
    np.savez(
        folder / "digits.npz",
        train_images=images[~test],
        train_labels=labels[~test],
        test_images=images[test],
        test_labels=labels[test],
    )


def weights(job: TrainingJob) -> dict[str, torch.Tensor]:
    """Read the state dict from a job's model, wherever that is."""
    with tempfile.TemporaryDirectory() as folder:
        model = job.download_model(Path(folder, "model"))
        return torch.load(model / "model.pt", weights_only=True, map_location="cpu")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--pipeline", choices=["simple", "interleaved"], default="interleaved")
    parser.add_argument(
        "--instance-type",
        default="local_process",
        help="local for containers, ssh:hosts.yaml for machines of your own, k8s:NAMESPACE (default: %(default)s)",
    )
    parser.add_argument("--image-uri", help="the image of the pods, for k8s:NAMESPACE")
    parser.add_argument("--output-path", help="a folder for results, such as pvc://CLAIM/FOLDER of k8s:NAMESPACE")
    parser.add_argument(
        "--hosts",
        type=int,
        choices=[1, 2, 3],
        default=1,
        help="two processes on one host, or one on each of several hosts",
    )
    parser.add_argument("--json", action="store_true", help="print the results as one JSON line at the end")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    shared = {
        "source_dir": str(HERE / "src"),
        # Some images lack tqdm. A library in pure Python can be uploaded next to the script.
        "dependencies": [str(Path(tqdm.__file__).parent)],
        "instance_type": arguments.instance_type,
        "image_uri": arguments.image_uri,
        "output_path": arguments.output_path,
        "hyperparameters": {"epochs": arguments.epochs},
        "metric_definitions": METRICS,
        # One thread per rank: sums are added in the same order on any machine. Without the second one, GPUs compute
        # convolutions in TF32, and the weights of both runs differ in the third digit.
        "environment": {"OMP_NUM_THREADS": "1", "NVIDIA_TF32_OVERRIDE": "0"},
    }
    partitions = max(2, arguments.hosts)
    distribution = {
        "smdistributed": {
            "modelparallel": {
                "enabled": True,
                "parameters": {"partitions": partitions, "microbatches": 4, "pipeline": arguments.pipeline},
            }
        },
        "mpi": {"enabled": True, "processes_per_host": partitions // arguments.hosts},
    }
    with tempfile.TemporaryDirectory() as data:
        write_data(Path(data))
        started = time.monotonic()
        estimator = PyTorch(
            "train.py", base_job_name="digits", instance_count=arguments.hosts, distribution=distribution, **shared
        )
        job = estimator.fit({"training": data})
        seconds = time.monotonic() - started
        print("\nthe same training in one process, for comparison:")
        reference = PyTorch("reference.py", base_job_name="digits-alone", instance_count=1, **shared)
        alone = reference.fit({"training": data})

    split, whole = weights(job), weights(alone)
    difference = max((split[name] - whole[name]).abs().max().item() for name in whole)
    accuracy = [metric.value for metric in job.metrics() if metric.name == "test_accuracy"][-1]
    print(f"\ntest accuracy         {accuracy:.4f}")
    print(f"model                 {job.model_data}")
    print(f"time                  {seconds:.1f} s")
    print(f"difference of weights {difference:.1e}   (largest, compared with the one-process run)")
    if arguments.json:
        print(json.dumps({"accuracy": accuracy, "difference": difference, "seconds": seconds, "model": job.model_data}))


if __name__ == "__main__":
    main()
