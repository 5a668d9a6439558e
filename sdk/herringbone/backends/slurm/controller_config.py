"""The config of the controller on the first node: a file in the job's folder that its owner alone may read."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

from herringbone.backends.detached import base_config
from herringbone.backends.on_s3 import s3_config
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
from herringbone.plan.plan import JobPlan
from herringbone.protocols.controller_config import ControllerConfig
from herringbone.records.home import Home
from herringbone_contract.constants import BASE_VARIABLE, HostVariable, masked
from herringbone_contract.variables import of_the_shell

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
    config = base_config(plan, home)
    retries = RETRIES if plan.options.max_retry_attempts is None else plan.options.max_retry_attempts
    variables = {
        **forwarded(environ),
        HostVariable.JOB_NAME: plan.job_name,
        HostVariable.CACHE: str(home.cache),
        HostVariable.STOP_GRACE: f"{config['stop_grace']:g}",
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
    # sqlite's locks are unreliable on shared file systems, so the controller writes a report file.
    config["report"] = str(report)
    config["steps"] = {
        "srun": container.srun,
        "argv": container.argv,
        "environment": plan.environment,
        "variables": variables,
    }
    config["retries"] = retries if settings_of(plan).requeue else 0
    # Slurm kills at its limit without a grace, so the controller must stop the hosts earlier.
    config["warning"] = warning_seconds(plan.time_limit, config["stop_grace"])
    # The config is a file, so it has no credentials. Nodes may reach the output by several paths, so its real one is
    # not compared. A review refuses Pipe mode.
    config["s3"] = s3_config(plan, home, with_credentials=False)
    return config


def forwarded(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of this machine's environment that the ranks get as well.

    >>> forwarded({"PATH": "/bin", "SLURM_JOB_ID": "7", "WANDB_API_KEY": "x", "CUDA_VISIBLE_DEVICES": "0", "RANK": "1"})
    {'PATH': '/bin'}

    Variables that look like secrets are left out; a user who needs one names it in `environment`.
    """
    harmless = {name: value for name, value in of_the_shell(environ).items() if masked({name: value})[name] == value}
    return {
        name: value
        for name, value in harmless.items()
        if name in _SETTINGS or not (_NOT_FORWARDED.fullmatch(name) or name.startswith("HERRINGBONE_"))
    }
