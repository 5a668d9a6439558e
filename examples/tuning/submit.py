"""Search the hyperparameters of a small network on handwritten digits, and show the trials.

Usage: python examples/tuning/submit.py [--strategy Random] [--max-jobs 9] [--epochs 9] [--parallel 2]
       [--instance-type local] [--seed 1] [--json]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits

from herringbone import (
    CategoricalParameter,
    ContinuousParameter,
    HyperbandStrategyConfig,
    HyperparameterTuner,
    IntegerParameter,
    PyTorch,
    StrategyConfig,
)

HERE = Path(__file__).resolve().parent
RANGES = {
    "lr": ContinuousParameter(1e-4, 1.0, scaling_type="Logarithmic"),
    "momentum": ContinuousParameter(0.5, 0.99, scaling_type="ReverseLogarithmic"),
    "width": IntegerParameter(8, 128, scaling_type="Logarithmic"),
    "optimizer": CategoricalParameter(["sgd", "adam"]),
}


def write_data(folder: Path) -> None:
    """Write scikit-learn's 1,797 handwritten digits as tensors. Every fifth digit belongs to the test split."""
    digits = load_digits()
    images = torch.from_numpy(digits.data / 16).float()
    labels = torch.from_numpy(digits.target).long()
    test = torch.arange(len(labels)) % 5 == 0
    torch.save(
        {
            "images": images[~test],
            "labels": labels[~test],
            "test_images": images[test],
            "test_labels": labels[test],
        },
        folder / "digits.pt",
    )


def search(arguments: argparse.Namespace, data: Path) -> HyperparameterTuner:
    """Search, and return the tuner when the search is over."""
    estimator = PyTorch(
        "train.py",
        source_dir=str(HERE / "src"),
        instance_type=arguments.instance_type,
        instance_count=1,
        hyperparameters={"epochs": arguments.epochs},
        # Small matrices: more threads would only wait for each other.
        environment={"OMP_NUM_THREADS": "1"},
    )
    settings: dict[str, Any] = {}
    if arguments.strategy == "Hyperband":
        config = HyperbandStrategyConfig(max_resource=arguments.epochs, min_resource=1)
        settings["strategy_config"] = StrategyConfig(config)
    tuner = HyperparameterTuner(
        estimator,
        "accuracy",
        RANGES,
        strategy=arguments.strategy,
        max_jobs=arguments.max_jobs,
        max_parallel_jobs=arguments.parallel,
        base_tuning_job_name="digits",
        random_seed=arguments.seed,
        **settings,
    )
    tuner.fit({"training": str(data)})
    return tuner


def epochs_trained(tuner: HyperparameterTuner, epochs: int) -> int:
    """Return the epochs that all trials together trained; a job that continues another trains the rest."""
    trials = tuner.trials()
    reached = [trial.resource or epochs for trial in trials]
    return sum(
        end - (0 if trial.resumes is None else reached[trial.resumes])
        for end, trial in zip(reached, trials, strict=True)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--strategy", choices=["Random", "Hyperband", "Bayesian"], default="Hyperband")
    parser.add_argument("--max-jobs", type=int, default=9)
    parser.add_argument("--epochs", type=int, default=9, help="the epochs of a full training (default: %(default)s)")
    parser.add_argument("--parallel", type=int, default=2, help="the trials that run at once (default: %(default)s)")
    parser.add_argument("--instance-type", default="local_process", help="(default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print the results as one JSON line at the end")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as data:
        write_data(Path(data))
        tuner = search(arguments, Path(data))
    best = tuner.best_training_job()
    found = next(trial for trial in tuner.trials() if trial.job == best)
    total = epochs_trained(tuner, arguments.epochs)
    print(f"\nbest job     {best}: accuracy {found.objective:.4f}")
    print(f"with         {', '.join(f'{name}={value}' for name, value in found.values.items())}")
    print(f"epochs       {total}   ({arguments.max_jobs * arguments.epochs} for {arguments.max_jobs} full trainings)")
    if arguments.json:
        print(json.dumps({"job": best, "accuracy": found.objective, "epochs": total, "jobs": len(tuner.trials())}))


if __name__ == "__main__":
    main()
