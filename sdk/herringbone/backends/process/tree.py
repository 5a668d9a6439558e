"""The contract's tree of one host of `local_process`, and the environment of its supervisor."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from herringbone.backends.review.checks import checkpoint_folder, tensorboard_folder
from herringbone.code.files import copy_source
from herringbone.plan.channels import is_piped
from herringbone.plan.host_tree import channels_of, make_fifo, make_folders, position_of, write_config, write_json
from herringbone.plan.inputs import Channel, share
from herringbone.plan.plan import HostPlan, JobPlan
from herringbone.records.home import JobFolder
from herringbone.system.descriptors import KEY_FD, LIFELINE_FD
from herringbone_contract.constants import BASE_VARIABLE, MODEL_DIR, SHARED_MODEL_DIR, HostVariable
from herringbone_contract.paths import Paths

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


def fill_host(plan: JobPlan, host: HostPlan, folder: JobFolder, *, exclude: Path, interface: str = LOOPBACK) -> None:
    """Write everything that the host's supervisor will read, and create the folders that it will write to.

    `interface` leads to the other hosts; empty when only the host itself can find it out.
    """
    paths = Paths(folder.host(host.name))
    make_folders(paths)
    _make_checkpoints(
        plan, Path(paths.checkpoints), Path(paths.checkpoint_config), folder.checkpoints(plan.hosts[0].name)
    )
    _link_tensorboard(tensorboard_folder(plan, host), Path(paths.tensorboard))
    for channel in channels_of(plan, host):
        if is_piped(channel, plan):
            make_fifo(channel, paths)
            continue
        position, sharers = position_of(channel, plan, host)
        _link_channel(channel, Path(paths.channel(channel.name)), host=position, hosts=sharers)
    hyperparameters = _with_local_paths(plan.hyperparameters, paths, folder)
    write_config(plan, host, paths, hyperparameters=hyperparameters, interface=interface)
    assert plan.source is not None
    copy_source(plan.source, Path(paths.code), exclude=exclude)


def job_environment(plan: JobPlan, *, run_folder: str, cache: Path, grace: float) -> dict[str, str]:
    """Return the variables of every host of the job."""
    environment = {
        HostVariable.JOB_NAME: plan.script_job_name,
        HostVariable.RUN_FOLDER: run_folder,
        HostVariable.CACHE: str(cache),
        HostVariable.STOP_GRACE: f"{grace:g}",
        HostVariable.LIFELINE: str(LIFELINE_FD),
    }
    if len(plan.hosts) > 1:
        # All hosts are on this machine, so a socket file needs no port and no other user can connect to it.
        environment[HostVariable.CONTROL] = f"unix:{run_folder}/control"
        environment[HostVariable.KEY_FILE] = f"/dev/fd/{KEY_FD}"
    return environment


def host_environment(host: HostPlan, folder: JobFolder) -> dict[str, str]:
    """Return the variables of one host."""
    return {BASE_VARIABLE: str(folder.host(host.name))}


def _link_channel(channel: Channel, into: Path, *, host: int, hosts: int) -> None:
    """Link the data, all of it or this host's share; a single file becomes a folder with that file."""
    assert channel.path is not None
    data = Path(channel.path)
    if data.is_dir() and not (channel.is_split and hosts > 1):
        into.symlink_to(data)
        return
    # Sorted, because every host must compute the same shares.
    files = sorted(path for path in data.rglob("*") if path.is_file()) if data.is_dir() else [data]
    root = data if data.is_dir() else data.parent
    # A folder of links, because one link to the whole folder would show all of its files.
    into.mkdir()
    for file in share(files, host=host, hosts=hosts) if channel.is_split else files:
        link = into / file.relative_to(root)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(file)


def _make_checkpoints(plan: JobPlan, into: Path, config: Path, first: Path) -> None:
    checkpoints = checkpoint_folder(plan)
    if checkpoints is None:
        # On another machine, the first host's folder is not there.
        if into != first and first.is_dir():
            into.symlink_to(first)
        else:
            into.mkdir()
        return
    # A link, so that the checkpoints outlive the job's folder.
    checkpoints.mkdir(parents=True, exist_ok=True)
    into.symlink_to(checkpoints)
    write_json(config, {"S3Uri": plan.options.checkpoint_s3_uri, "LocalPath": str(into)})


def _link_tensorboard(folder: Path | None, into: Path) -> None:
    if folder is not None:
        # A link, so that the files outlive the job's folder.
        folder.mkdir(parents=True, exist_ok=True)
        into.symlink_to(folder)


def _with_local_paths(hyperparameters: dict[str, str], paths: Paths, folder: JobFolder) -> dict[str, str]:
    """Replace the container's path in `model_dir`, the one hyperparameter with a path, by one of this machine."""
    folders = {json.dumps(MODEL_DIR): str(paths.model), json.dumps(SHARED_MODEL_DIR): str(folder.shared / "model")}
    path = folders.get(hyperparameters.get("model_dir", ""))
    if path is None:
        return hyperparameters
    os.makedirs(path, exist_ok=True)  # noqa: PTH103
    return {**hyperparameters, "model_dir": json.dumps(path)}


def keeps_in_memory(plan: JobPlan, retries: int) -> bool:
    """Report whether the job's hosts keep checkpoints in memory: where it restarts, unless the user wants none."""
    # Only Linux has files that live in the memory of a process.
    return retries > 0 and plan.options.checkpoint_memory is not False and sys.platform == "linux"


def memory_environment(plan: JobPlan) -> dict[str, str]:
    """Return the variable with the number of steps after which ranks save into memory, where the user has given it."""
    steps = plan.options.checkpoint_memory
    return {} if steps is None or isinstance(steps, bool) else {HostVariable.MEMORY_STEPS: str(steps)}
