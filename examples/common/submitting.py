"""What the examples' submit.py share: their arguments, the job, and what is printed of it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from herringbone import Estimator, PyTorch, TrainingJob, attach
from herringbone_parallel.core.recipes.large_batch import aggregation_for

Settings = dict[str, Any]
# For each rank where there are no GPUs: the same arithmetic, whatever the machine.
_ONE_CORE = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1"}


def arguments_of(description: str) -> argparse.ArgumentParser:
    """Return a parser with the arguments that all examples have."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--instance-type", default="local_process")
    parser.add_argument("--hosts", type=int, default=1)
    parser.add_argument("--ranks", type=int, help="of all hosts (default: one a host)")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="another hyperparameter")
    parser.add_argument("--alone", metavar="JOB", help="an earlier job of one rank, to compare samples/s with")
    parser.add_argument("--json", action="store_true", help="print the metrics as one JSON line at the end")
    return parser


def where_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what the command line says of hosts and ranks, as `train` takes it."""
    ranks = arguments.ranks or arguments.hosts
    return {"hosts": arguments.hosts, "ranks": ranks, "instance_type": arguments.instance_type}


def settings_of(arguments: argparse.Namespace, chosen: Settings) -> Settings:
    """Return the hyperparameters: what the example chose, and what the command line says."""
    settings = dict(chosen)
    settings.setdefault("global-batch", settings["rank-batch"] * where_of(arguments)["ranks"])
    for pair in arguments.set:
        name, equals, value = pair.partition("=")
        if not equals:
            sys.exit(f"--set {pair}: write it as NAME=VALUE")
        settings[name] = json.loads(value) if value[:1].isdigit() else value
    if arguments.alone:
        figures = figures_of(attach(arguments.alone))
        if "throughput" not in figures:
            sys.exit(f"--alone {arguments.alone}: that job's log has no samples/s; it has to have ended")
        settings["alone"] = figures["throughput"]
    return settings


def train(
    settings: Settings,
    data: dict[str, str],
    *,
    source: Path,
    hosts: int = 1,
    ranks: int = 1,
    instance_type: str = "local_process",
    framework: type[Estimator] = PyTorch,
) -> TrainingJob:
    """Run one job; what does not fit into a step at once is added up by the dict's `aggregation_frequency`.

    `source` is the example's `src` folder, `framework` its estimator. Raises `ParallelError` where a global batch
    cannot be made of the ranks'.
    """
    frequency = aggregation_for(settings["global-batch"], rank_batch=settings["rank-batch"], ranks=ranks)
    return framework(
        entry_point="train.py",
        source_dir=str(source),
        dependencies=[str(Path(__file__).resolve().parent)],
        base_job_name=source.parent.name.replace("_", "-"),
        instance_type=instance_type,
        instance_count=hosts,
        hyperparameters=settings,
        distribution={"smdistributed": {"dataparallel": {"enabled": True, "aggregation_frequency": frequency}}},
        environment=_ONE_CORE if instance_type.startswith("local_process") else {},
    ).fit(data)


def figures_of(job: TrainingJob) -> dict[str, float]:
    """Return the job's metrics, of each the last value."""
    return {metric.name: metric.value for metric in job.metrics()}


def report(job: TrainingJob, names: Iterable[str], *, as_json: bool) -> None:
    """Print where the model is, and the metrics of these names with what all runs have."""
    figures = figures_of(job)
    print(f"\njob       {job.name}\nmodel     {job.model_data}")
    for name in (*names, "run_seconds", "throughput", "scaling_efficiency", "seconds_to_target"):
        if name in figures:
            print(f"{name:<20} {figures[name]:.4g}")
    if as_json:
        print(json.dumps(figures))
