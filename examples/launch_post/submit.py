"""Train the announcement's model, split over two processes, and load the saved model in plain Keras.

Usage: python examples/launch_post/submit.py [--data FOLDER] [--epochs 8] [--instance-type local] [--hosts 2] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path

import numpy as np

from herringbone import TensorFlow, TrainingJob

HERE = Path(__file__).resolve().parent
METRICS = [
    {"Name": "loss", "Regex": r"loss=(\S+)"},
    {"Name": "test_accuracy", "Regex": r"test_accuracy=(\S+)"},
]


def difference_in_keras(job: TrainingJob, data: Path) -> float:
    """Load the job's SavedModel in plain Keras and return the largest difference to the job's predictions."""
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    import keras

    with tempfile.TemporaryDirectory() as folder:
        job.download_model(folder)
        expected = np.load(Path(folder) / "predictions.npy")
        model = keras.layers.TFSMLayer(Path(folder) / "1", call_endpoint="serving_default")
        with np.load(data / "digits.npz") as arrays:
            images = (arrays["x_test"][: len(expected), ..., None] / 255.0).astype("float32")
        outputs = model(images)
    # Some versions of Keras return a SavedModel's outputs by name.
    predictions = next(iter(outputs.values())) if isinstance(outputs, dict) else outputs
    return float(np.abs(np.asarray(predictions) - expected).max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="a folder that data.py has written (default: write a temporary one)")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--instance-type", default="local_process", help="local for containers (default: %(default)s)")
    parser.add_argument(
        "--hosts", type=int, choices=[1, 2], default=1, help="two processes on one host, or one on each of two"
    )
    parser.add_argument("--json", action="store_true", help="print the results as one JSON line at the end")
    arguments = parser.parse_args()
    estimator = TensorFlow(
        entry_point="train.py",
        source_dir=str(HERE / "src"),
        base_job_name="launch-post",
        instance_type=arguments.instance_type,
        instance_count=arguments.hosts,
        hyperparameters={"epochs": arguments.epochs},
        metric_definitions=METRICS,
        distribution={
            "smdistributed": {
                "modelparallel": {
                    "enabled": True,
                    "parameters": {
                        "partitions": 2,
                        "microbatches": 2,
                        "pipeline": "interleaved",
                        "optimize": "memory",
                    },
                }
            },
            "mpi": {"enabled": True, "processes_per_host": 2 // arguments.hosts},
        },
    )
    with tempfile.TemporaryDirectory() as folder:
        data = arguments.data
        if data is None:
            from data import write_data

            data = Path(folder)
            print(f"training on {write_data(data)}")
        job = estimator.fit({"training": str(data.resolve())})
        difference = difference_in_keras(job, data)

    # Every rank prints each epoch. Equal lines show that all ranks have the loss of the whole model.
    epochs = [line.text for line in job.logs() if line.text.startswith("epoch ")]
    same = all(epochs.count(line) == 2 for line in epochs)
    accuracy = [metric.value for metric in job.metrics() if metric.name == "test_accuracy"][-1]
    print(f"\ntest accuracy             {accuracy:.4f}")
    print(f"equal lines of both ranks {same}")
    print(f"model                     {job.model_data}")
    print(f"difference in plain Keras {difference:.1e}   (largest, of the predictions)")
    if arguments.json:
        print(json.dumps({"accuracy": accuracy, "same": same, "difference": difference, "model": job.model_data}))


if __name__ == "__main__":
    main()
