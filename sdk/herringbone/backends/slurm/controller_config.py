"""The config of the controller on the first node: a file in the job's folder that its owner alone may read."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

from herringbone.backends.detached import PATIENCE_SECONDS, stop_grace
from herringbone.backends.on_s3 import s3_config
from herringbone.backends.review.checks import output_folder
from herringbone.backends.slurm.commands import PREFIXES
from herringbone.backends.slurm.containers import (
    Container,
    Runtime,
    container_of,
    image_of,
    mounts_of,
    without_python_folders,
)
from herringbone.backends.slurm.review import RETRIES
from herringbone.backends.slurm.script import asks_for_gpus, settings_of, warning_seconds
from herringbone.controller.retry import policies_of
from herringbone.plan.plan import JobPlan
from herringbone.protocols.controller_config import ControllerConfig
from herringbone.records.home import Home
from herringbone_contract.constants import BASE_VARIABLE, HostVariable, masked

# Variables that Slurm or the node sets, and variables whose values mean nothing on another machine.
_NOT_FORWARDED = re.compile(
    rf"({'|'.join(PREFIXES)}|PMI|PMIX)\w*|(CUDA|ROCR|HIP|NVIDIA)_VISIBLE_DEVICES"
    r"|GPU_DEVICE_ORDINAL|ZE_AFFINITY_MASK|HOSTNAME|TMPDIR|PWD|OLDPWD|SSH_\w+|DISPLAY|XDG_\w+|DBUS_\w+|_"
)
_SETTINGS = (HostVariable.HEARTBEAT, HostVariable.JOIN_TIMEOUT)


def config_of(
    plan: JobPlan, home: Home, environ: Mapping[str, str], *, report: Path, runtime: Runtime | None = None
) -> ControllerConfig:
    """Return the config of a job whose folder is below `home`; `environ` is the client's environment.

    `runtime` is the program that runs the job's image.
    """
    folder = home.job(plan.job_name)
    grace = stop_grace()
    retries = RETRIES if plan.options.max_retry_attempts is None else plan.options.max_retry_attempts
    max_run = plan.options.max_run
    variables = {
        **forwarded(environ),
        HostVariable.JOB_NAME: plan.job_name,
        HostVariable.CACHE: str(home.cache),
        HostVariable.STOP_GRACE: f"{grace:g}",
        # The private line is on descriptor 0, standard input.
        HostVariable.PRIVATE: "0",
    }
    container = Container([], [sys.executable, "-m", "herringbone_entry"])
    if (image := image_of(plan)) is not None:
        assert runtime is not None
        # The image's Python cannot share installed packages with the Pythons of other images.
        variables[HostVariable.CACHE] = str(home.job(plan.job_name).path / "cache")
        variables = without_python_folders(variables)
        names = [*variables, BASE_VARIABLE, HostVariable.CONTROL]
        container = container_of(runtime, image, mounts_of(plan, home), names=names, gpus=asks_for_gpus(plan))
    return {
        "job": plan.job_name,
        # sqlite's locks are unreliable on shared file systems, so the controller writes a report file.
        "index": None,
        "report": str(report),
        "logs": str(folder.logs),
        "hosts": [{"name": host.name, "base": str(folder.host(host.name))} for host in plan.hosts],
        "processes": None,
        "containers": None,
        "steps": {
            "srun": container.srun,
            "argv": container.argv,
            "environment": plan.environment,
            "variables": variables,
        },
        "run_folder": "",
        "retries": retries if settings_of(plan).requeue else 0,
        "policies": policies_of(plan.options.log_policies),
        "max_run": max_run,
        # Slurm kills at its limit without a grace, so the controller must stop the hosts earlier.
        "warning": warning_seconds(max_run, grace),
        "stop_grace": grace,
        "patience": PATIENCE_SECONDS,
        "metric_definitions": [(metric.name, metric.regex) for metric in plan.options.metric_definitions],
        "output": str(output_folder(plan, folder)),
        # Nodes may reach one folder by several paths.
        "real_output": None,
        "claim": None,
        "compress": not plan.options.disable_output_compression,
        # The config is a file, so it has no credentials.
        "s3": s3_config(plan, home, with_credentials=False),
        # A review refuses Pipe mode.
        "pipes": None,
    }


def forwarded(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of this machine's environment that the ranks get as well.

    >>> forwarded({"PATH": "/bin", "SLURM_JOB_ID": "7", "WANDB_API_KEY": "secret", "CUDA_VISIBLE_DEVICES": "0"})
    {'PATH': '/bin'}

    Variables that look like secrets are left out; a user who needs one names it in `environment`.
    """
    harmless = {name: value for name, value in environ.items() if masked({name: value})[name] == value}
    return {
        name: value
        for name, value in harmless.items()
        if name in _SETTINGS or not (_NOT_FORWARDED.fullmatch(name) or name.startswith("HERRINGBONE_"))
    }
