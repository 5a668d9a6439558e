"""Train without an interruption, train again with a stop and a resume, and compare the weights.

Usage: python examples/spot/submit.py [--script split] [--steps 600] [--instance-type local] [--json]
"""

from __future__ import annotations

import argparse
import json
import tarfile
import tempfile
from pathlib import Path

import torch

from herringbone import PyTorch, TrainingJob

HERE = Path(__file__).resolve().parent
SPLIT = {
    "smdistributed": {"modelparallel": {"enabled": True, "parameters": {"partitions": 2, "microbatches": 2}}},
    "mpi": {"enabled": True, "processes_per_host": 2},
}


def train(arguments: argparse.Namespace, checkpoints: Path, *, stop: bool = False) -> TrainingJob:
    """Run the script to its end. With `stop`, stop it like a spot interruption after its first printed step."""
    estimator = PyTorch(
        f"{arguments.script}.py",
        source_dir=str(HERE / "src"),
        base_job_name=f"spot-{arguments.script}",
        instance_type=arguments.instance_type,
        instance_count=1,
        hyperparameters={"steps": arguments.steps},
        distribution=SPLIT if arguments.script == "split" else None,
        # On ml.*, pass an S3 address here, and add use_spot_instances=True and max_wait=...
        checkpoint_s3_uri=checkpoints.as_uri(),
        # One thread per rank: sums are added in the same order in all runs.
        environment={"OMP_NUM_THREADS": "1"},
    )
    job = estimator.fit(wait=False)
    for line in job.logs(follow=True):
        print(line.prefix, line.text)
        if stop and line.text.startswith("step="):
            job.stop()
            stop = False
    return job.wait()


def number(job: TrainingJob, word: str) -> int:
    """Return the number that the script printed as `word=number`."""
    return next(int(line.text.partition("=")[2]) for line in job.logs(rank=0) if line.text.startswith(f"{word}="))


def weights(job: TrainingJob) -> dict[str, torch.Tensor]:
    """Read the state dict from a job's model.tar.gz."""
    with tarfile.open(job.model_data.removeprefix("file://")) as archive:
        return torch.load(archive.extractfile("model.pt"), weights_only=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--script", choices=["plain", "split"], default="plain")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--instance-type", default="local_process", help="local for containers (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the results as one JSON line at the end")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        uninterrupted = train(arguments, Path(folder) / "uninterrupted")
        stopped = train(arguments, Path(folder) / "spot", stop=True)
        if not any(line.text.startswith("saved_at=") for line in stopped.logs(rank=0)):
            parser.error(f"--steps {arguments.steps}: the job was over before the stop; give it more steps")
        resumed = train(arguments, Path(folder) / "spot")
    saved_at, resumed_at = number(stopped, "saved_at"), number(resumed, "resumed_at")
    expected, actual = weights(uninterrupted), weights(resumed)
    difference = max((expected[name] - actual[name]).abs().max().item() for name in expected)
    print(f"\nstopped               after step {saved_at} of {arguments.steps}: {stopped.status}")
    print(f"resumed               at step {resumed_at}: {resumed.status}")
    print(f"difference of weights {difference:.1e}   (largest, compared with the uninterrupted run)")
    if arguments.json:
        result = {"saved_at": saved_at, "resumed_at": resumed_at, "stopped": stopped.status, "resumed": resumed.status}
        print(json.dumps({**result, "difference": difference}))


if __name__ == "__main__":
    main()
