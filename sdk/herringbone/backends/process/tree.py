"""The contract's tree of one host of `local_process`, and the environment its supervisor starts in."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from herringbone.backends.host_tree import channels_of, make_folders, place_of, write_config, write_json
from herringbone.code.files import copy_source
from herringbone.controller.descriptors import KEY_FD, LIFELINE_FD
from herringbone.estimators.inputs import Channel, share
from herringbone.jobs.home import JobFolder
from herringbone.planning.checks import checkpoint_folder
from herringbone.planning.plan import MODEL_DIR, SHARED_MODEL_DIR, HostPlan, JobPlan
from herringbone_contract.constants import BASE_VARIABLE, HostVariable
from herringbone_contract.paths import Paths

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


def fill_host(plan: JobPlan, host: HostPlan, folder: JobFolder, *, but_not: Path, interface: str = LOOPBACK) -> None:
    """Write all that the host's supervisor will read, and make the folders it will write to.

    `interface` leads to the other hosts; empty where only they will know.
    """
    paths = Paths(folder.host(host.name))
    make_folders(paths)
    _make_checkpoints(plan, Path(paths.checkpoints), Path(paths.checkpoint_config))
    for channel in channels_of(plan, host):
        place, places = place_of(channel, plan, host)
        _link_channel(channel, Path(paths.channel(channel.name)), host=place, hosts=places)
    hyperparameters = _localised(plan.hyperparameters, paths, folder)
    write_config(plan, host, paths, hyperparameters=hyperparameters, interface=interface)
    assert plan.source is not None
    copy_source(plan.source, Path(paths.code), but_not=but_not)


def job_environment(plan: JobPlan, *, run_folder: str, cache: Path, grace: float) -> dict[str, str]:
    """Return the variables that every host of the job gets."""
    environment = {
        HostVariable.JOB_NAME: plan.script_job_name,
        HostVariable.RUN_FOLDER: run_folder,
        HostVariable.CACHE: str(cache),
        HostVariable.STOP_GRACE: f"{grace:g}",
        HostVariable.LIFELINE: str(LIFELINE_FD),
    }
    if len(plan.hosts) > 1:
        environment[HostVariable.CONTROL] = f"unix:{run_folder}/control"
        environment[HostVariable.KEY_FILE] = f"/dev/fd/{KEY_FD}"
    return environment


def host_environment(host: HostPlan, folder: JobFolder) -> dict[str, str]:
    """Return the variables of one host."""
    return {BASE_VARIABLE: str(folder.host(host.name))}


def _link_channel(channel: Channel, into: Path, *, host: int, hosts: int) -> None:
    """Link the data in, whole or this host's share; a lone file becomes a folder with that file."""
    assert channel.path is not None
    data = Path(channel.path)
    if data.is_dir() and not (channel.sharded and hosts > 1):
        into.symlink_to(data)
        return
    files = sorted(path for path in data.rglob("*") if path.is_file()) if data.is_dir() else [data]
    root = data if data.is_dir() else data.parent
    into.mkdir()
    for file in share(files, host=host, hosts=hosts) if channel.sharded else files:
        link = into / file.relative_to(root)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(file)


def _make_checkpoints(plan: JobPlan, into: Path, config: Path) -> None:
    outliving = checkpoint_folder(plan)
    if outliving is None:
        into.mkdir()
        return
    outliving.mkdir(parents=True, exist_ok=True)
    into.symlink_to(outliving)
    write_json(config, {"S3Uri": plan.options.checkpoint_s3_uri, "LocalPath": str(into)})


def _localised(hyperparameters: dict[str, str], paths: Paths, folder: JobFolder) -> dict[str, str]:
    """Put this machine's folders in the place of the container's, in the one hyperparameter that names them."""
    places = {json.dumps(MODEL_DIR): str(paths.model), json.dumps(SHARED_MODEL_DIR): str(folder.shared / "model")}
    place = places.get(hyperparameters.get("model_dir", ""))
    if place is None:
        return hyperparameters
    os.makedirs(place, exist_ok=True)  # noqa: PTH103
    return {**hyperparameters, "model_dir": json.dumps(place)}
