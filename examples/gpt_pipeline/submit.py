"""Train a GPT on bytes with pipeline and data parallelism, and compare its losses with those of one process.

Usage: python examples/gpt_pipeline/submit.py [--partitions 2] [--replicas 2] [--text FOLDER] [--json]

Without --text, the text is some sources of Python's standard library, which every installation has.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from herringbone import PyTorch, TrainingJob

HERE = Path(__file__).resolve().parent
# About 0.8 MB of text that changes little between releases of Python.
MODULES = ("argparse", "ast", "datetime", "decimal", "doctest", "inspect", "pathlib", "pydoc", "tarfile", "typing")


def write_text(folder: Path) -> None:
    """Copy those of `MODULES` that this release of Python has as a file."""
    library = Path(sysconfig.get_path("stdlib"))
    for name in MODULES:
        if (library / f"{name}.py").is_file():
            shutil.copy(library / f"{name}.py", folder)


def train(settings: dict[str, Any], text: str, *, partitions: int, replicas: int, microbatches: int = 4) -> TrainingJob:
    """Run one job on one host: `replicas` pipelines of `partitions` ranks, or plain PyTorch for one rank."""
    split = partitions * replicas > 1
    parameters = {"partitions": partitions, "microbatches": microbatches, "pipeline": "interleaved", "ddp": True}
    distribution = {
        "smdistributed": {"modelparallel": {"enabled": True, "parameters": parameters}},
        "mpi": {"enabled": True, "processes_per_host": partitions * replicas},
    }
    return PyTorch(
        "train.py" if split else "reference.py",
        source_dir=str(HERE / "src"),
        base_job_name="gpt",
        instance_type="local_process",
        instance_count=1,
        hyperparameters=settings,
        distribution=distribution if split else None,
        environment={"OMP_NUM_THREADS": "1"},
    ).fit({"training": text})


def losses(job: TrainingJob) -> list[float]:
    """Return the loss of each step."""
    lines = (line.text for line in job.logs(rank=0))
    return [float(match.group(1)) for text in lines if (match := re.fullmatch(r"step=\d+ loss=(\S+)", text))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--text", help="a folder of .txt or .py files")
    parser.add_argument("--json", action="store_true", help="print the results as one JSON line at the end")
    arguments = parser.parse_args()
    settings = {"steps": arguments.steps}
    with tempfile.TemporaryDirectory() as folder:
        if arguments.text is None:
            write_text(Path(folder))
        text = arguments.text or folder
        job = train(settings, text, partitions=arguments.partitions, replicas=arguments.replicas)
        print("\nthe same training in one process, for comparison:")
        alone = train(settings, text, partitions=1, replicas=1)
    split, whole = losses(job), losses(alone)
    difference = max(abs(loss - reference) for loss, reference in zip(split, whole, strict=True))
    print(f"\nloss                 {split[0]:.4f} -> {split[-1]:.4f}")
    print(f"difference of losses {difference:.1e}   (largest, compared with the one-process run)")
    if arguments.json:
        print(json.dumps({"first": split[0], "last": split[-1], "difference": difference}))


if __name__ == "__main__":
    main()
