"""The arguments of sbatch and a readable batch script, made from a plan. Pure.

The script contains user input only as words that `estimators/slurm.py` has checked, or quoted.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping
from typing import NamedTuple

from herringbone.backends.review.settings import named_place
from herringbone.plan.options.slurm import SlurmSettings
from herringbone.plan.plan import JobPlan
from herringbone.records.home import JobFolder

PREFIX = "slurm:"
_PARTITION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,-]*")
# Between the end of the grace and the end of the job, the controller kills what is left, and packs.
_MARGIN_SECONDS = 5.0
# Slurm checks once a minute which jobs to signal, so its signal comes up to this much too early.
_SLURM_EARLY_SECONDS = 60
_SEARCH_PATHS = ("PYTHONPATH", "LD_LIBRARY_PATH")


class ScriptContext(NamedTuple):
    """Values of this machine in the script: the job's folder, Python, and its environment."""

    folder: JobFolder
    python: str
    environ: Mapping[str, str]


def partition_of(plan: JobPlan) -> str:
    """Return the partition that a job's hosts are nodes of. Raises `OptionError` or `UnsupportedError`."""
    return named_place(plan, PREFIX, _PARTITION, "Slurm", "partition", "slurm:gpu")


def settings_of(plan: JobPlan) -> SlurmSettings:
    """Return the job's settings for the cluster, the defaults when the user gave none."""
    return plan.options.slurm or SlurmSettings()


def asks_for_gpus(plan: JobPlan) -> bool:
    return "gpu" in (settings_of(plan).gres or "")


def gpus_per_node(plan: JobPlan) -> int | None:
    """Return the number of GPUs that the job asks for on each node; None where `gres` does not say."""
    match = re.search(r"(?:^|,)(?:gres/)?gpu(?::[^:,(]+)*?:(\d+)", settings_of(plan).gres or "")
    return int(match[1]) if match else None


def warning_seconds(max_run: float, grace: float) -> float:
    """Return how long before the end of `max_run` the hosts get SIGTERM, in seconds.

    >>> warning_seconds(3600, 110), warning_seconds(60, 110)
    (115.0, 30.0)
    """
    return min(grace + _MARGIN_SECONDS, max_run / 2)


def sbatch_words(folder: JobFolder) -> list[str]:
    """Return the command.

    Paths are arguments and not #SBATCH lines, because those take no path with a blank or a %.
    """
    return [
        "sbatch",
        "--parsable",
        f"--chdir={folder.path}",
        f"--output={str(folder.controller_log).replace('%', '%%')}",
    ]


def batch_script(plan: JobPlan, context: ScriptContext, *, grace: float, runtime: str | None = None) -> str:
    """Return the script.

    >>> print(batch_script(plan, context, grace=110.0))        # doctest: +SKIP
    #!/bin/bash
    #SBATCH --job-name=digits-1
    ...

    `grace` is in seconds; `runtime` is the program that runs the job's image, if it has one.
    """
    paths = {name: context.environ[name] for name in _SEARCH_PATHS if context.environ.get(name)}
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {word}" for word in _directives(plan, grace)),
        "",
        "# The controller starts one supervisor on each node, in an srun of its own, and plays the platform for them.",
        *([f"# It does so in {plan.arguments.image_uri}, by {runtime}."] if runtime else []),
        "# Clients send it to the controller. One that comes before the controller has a handler must not end the job.",
        "trap '' USR1",
        *(f"export {name}={shlex.quote(value)}" for name, value in paths.items()),
        shlex.join(["exec", context.python, "-m", "herringbone.controller", plan.job_name])
        + f" < {shlex.quote(str(config_path(context.folder)))}",
    ]
    return "\n".join(lines) + "\n"


def config_path(folder: JobFolder) -> str:
    """Return the path of the controller's config, which its owner alone may read."""
    return str(folder.path / "order.json")


def _directives(plan: JobPlan, grace: float) -> list[str]:
    settings = settings_of(plan)
    warning = warning_seconds(plan.time_limit, grace)
    directives = {
        "job-name": plan.job_name,
        "partition": partition_of(plan),
        "account": settings.account,
        "qos": settings.qos,
        "nodes": len(plan.hosts),
        # One supervisor per node; the supervisor starts the ranks.
        "ntasks-per-node": 1,
        "cpus-per-task": settings.cpus,
        "mem": settings.memory if settings.cpus is not None else 0,
        "gres": settings.gres,
        "constraint": settings.constraint,
        "time": minutes(plan.time_limit),
        # The controller stops the hosts in time by itself. Slurm's signal is for a controller that hangs.
        "signal": f"B:TERM@{max(1, int(warning) - _SLURM_EARLY_SECONDS)}",
        # A restarted job must not truncate the log of its earlier attempts.
        "open-mode": "append",
    }
    words = [f"--{name}={value}" for name, value in directives.items() if value is not None]
    return [
        *words,
        *([] if settings.cpus is not None else ["--exclusive"]),
        "--requeue" if settings.requeue else "--no-requeue",
    ]


def minutes(max_run: float) -> int:
    """Return Slurm's time limit, which is in whole minutes.

    >>> minutes(60), minutes(61)
    (1, 2)
    """
    return math.ceil(max_run / 60)
