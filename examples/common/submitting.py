"""Code that the submit.py of all training examples share: their arguments, the job, and the printed results."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from herringbone import Estimator, InstanceGroup, MXNet, PyTorch, TensorFlow, TrainingJob, attach
from herringbone_parallel.core.recipes.large_batch import aggregation_for

Settings = dict[str, Any]
# The estimator of each framework, and the folder of an example with its training script.
FRAMEWORKS: dict[str, tuple[type[Estimator], str]] = {
    "pytorch": (PyTorch, "src"),
    "tensorflow": (TensorFlow, "src_tensorflow"),
    "mxnet": (MXNet, "src_mxnet"),
}
# One thread per rank on CPUs: the order of additions, and so the result, does not depend on the number of cores.
_ONE_CORE = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1"}


def arguments_of(description: str, example: Path | None = None) -> argparse.ArgumentParser:
    """Build a parser with the arguments that all examples have.

    `example` is the folder of an example that runs on several frameworks; its parser has `--framework`.
    """
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--instance-type", default="local_process")
    parser.add_argument("--hosts", type=int, default=1)
    parser.add_argument("--ranks", type=int, help="ranks of all hosts together (default: one per host)")
    parser.add_argument("--helpers", type=int, default=0, help="further hosts, which only add up gradients")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="another hyperparameter")
    parser.add_argument("--alone", metavar="JOB", help="an earlier job with one rank, to compare samples/s with")
    parser.add_argument("--json", action="store_true", help="print the metrics as one JSON line at the end")
    if example is not None:
        names = [name for name, (_, folder) in FRAMEWORKS.items() if (example / folder).is_dir()]
        parser.add_argument("--framework", choices=names, default=names[0])
    return parser


def framework_of(arguments: argparse.Namespace, example: Path) -> dict[str, Any]:
    """Return the estimator and the script's folder of `--framework`, as arguments of `train`."""
    estimator, folder = FRAMEWORKS[arguments.framework]
    if estimator is MXNet and arguments.helpers:
        sys.exit(f"--helpers {arguments.helpers}: MXNet's ranks add up their gradients themselves; leave it out")
    return {"framework": estimator, "source": example / folder}


def layout_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the hosts, ranks and instance type of the command line, as arguments of `train`."""
    ranks, helpers = arguments.ranks or arguments.hosts, arguments.helpers
    return {"hosts": arguments.hosts, "ranks": ranks, "helpers": helpers, "instance_type": arguments.instance_type}


def settings_of(arguments: argparse.Namespace, defaults: Settings) -> Settings:
    """Return the example's hyperparameters, overridden by those of the command line."""
    settings = dict(defaults)
    settings.setdefault("global-batch", settings["rank-batch"] * layout_of(arguments)["ranks"])
    for pair in arguments.set:
        name, equals, value = pair.partition("=")
        if not equals:
            sys.exit(f"--set {pair}: write it as NAME=VALUE")
        settings[name] = json.loads(value) if value[:1].isdigit() else value
    if arguments.alone:
        figures = figures_of(attach(arguments.alone))
        if "throughput" not in figures:
            sys.exit(f"--alone {arguments.alone}: the job's log has no samples/s; wait for the end of the job")
        settings["alone"] = figures["throughput"]
    return settings


def train(
    settings: Settings,
    data: dict[str, str],
    *,
    source: Path,
    hosts: int = 1,
    ranks: int = 1,
    helpers: int = 0,
    instance_type: str = "local_process",
    framework: type[Estimator] = PyTorch,
) -> TrainingJob:
    """Run one job. Its `aggregation_frequency` follows from the global batch, the rank batch and the ranks.

    `source` is the folder with the example's `train.py`, `framework` its estimator. In the job, the modules of the
    folder `shared` next to it are next to `train.py`. Raises `ParallelError` if the global batch is not a multiple of
    all ranks' batches.
    """
    shared = sorted((source.parent / "shared").glob("*.py"))
    frequency = aggregation_for(settings["global-batch"], rank_batch=settings["rank-batch"], ranks=ranks)
    options: dict[str, Any] = {"enabled": True, "aggregation_frequency": frequency}
    distribution: dict[str, Any] = {"smdistributed": {"dataparallel": options}}
    if framework is MXNet:
        # Its ranks use Horovod's names, under `mpi`. The script adds up the gradients of a step's parts itself.
        distribution = {"mpi": {"enabled": True, "processes_per_host": ranks // hosts}}
    machines: dict[str, Any] = {"instance_type": instance_type, "instance_count": hosts}
    if helpers:
        groups = [InstanceGroup(name, instance_type, count) for name, count in (("ranks", hosts), ("helpers", helpers))]
        options["helpers"], machines = "helpers", {"instance_groups": groups}
    return framework(
        entry_point="train.py",
        source_dir=str(source),
        dependencies=[str(Path(__file__).resolve().parent), *map(str, shared)],
        base_job_name=source.parent.name.replace("_", "-"),
        **machines,
        hyperparameters=settings,
        distribution=distribution,
        environment=_ONE_CORE if instance_type.startswith("local_process") else {},
    ).fit(data)


def figures_of(job: TrainingJob) -> dict[str, float]:
    """Return the last value of each metric of the job."""
    return {metric.name: metric.value for metric in job.metrics()}


def report(job: TrainingJob, names: Iterable[str], *, as_json: bool) -> None:
    """Print the model's address, the named metrics, and the metrics that all jobs have."""
    figures = figures_of(job)
    print(f"\njob       {job.name}\nmodel     {job.model_data}")
    for name in (*names, "run_seconds", "throughput", "scaling_efficiency", "seconds_to_target"):
        if name in figures:
            print(f"{name:<20} {figures[name]:.4g}")
    if as_json:
        print(json.dumps(figures))
