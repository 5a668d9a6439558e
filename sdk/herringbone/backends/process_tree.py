"""The contract's tree of one host of `local_process`, and the environment its supervisor starts in."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from herringbone.backends.process_review import all_channels, checkpoint_folder
from herringbone.frameworks import MODEL_DIR, SHARED_MODEL_DIR
from herringbone.home import JobFolder
from herringbone.inputs import Channel, share
from herringbone.keeper.inheritance import KEY_FD, LIFELINE_FD
from herringbone.plan import HostPlan, JobPlan
from herringbone.source import copy_source
from herringbone_spec.contract import BASE_VARIABLE, HostVariable, Paths
from herringbone_spec.resources import HostGroup, ResourceConfig

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


def fill_host(plan: JobPlan, host: HostPlan, folder: JobFolder, *, but_not: Path) -> None:
    """Write all that the host's supervisor will read, and make the folders it will write to."""
    paths = Paths(folder.host(host.name))
    folder.logs.mkdir(exist_ok=True)
    for path in (paths.config, paths.data, paths.code, paths.model, paths.output_data):
        Path(path).mkdir(parents=True, exist_ok=True)
    _make_checkpoints(plan, Path(paths.checkpoints), Path(paths.checkpoint_config))
    channels = [channel for channel in all_channels(plan) if _goes_to(channel, host)]
    for channel in channels:
        same = [each.name for each in plan.hosts if _goes_to(channel, each)]
        _link_channel(channel, Path(paths.channel(channel.name)), host=same.index(host.name), hosts=len(same))
    _write(paths.hyperparameters, _localised(plan.hyperparameters, paths, folder))
    _write(paths.input_data_config, {channel.name: _channel_config(channel, plan) for channel in channels})
    _write(paths.resource_config, _resource_config(plan, host).to_json())
    assert plan.source is not None
    copy_source(plan.source, Path(paths.code), but_not=but_not)


def job_environment(plan: JobPlan, *, run_folder: str, cache: Path, grace: float) -> dict[str, str]:
    """Return the variables that every host of the job gets."""
    environment = {
        HostVariable.JOB_NAME: plan.job_name,
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


def _write(path: Any, content: object) -> None:
    Path(path).write_text(json.dumps(content))


def _goes_to(channel: Channel, host: HostPlan) -> bool:
    return channel.input.instance_groups is None or host.group in channel.input.instance_groups


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
    _write(config, {"S3Uri": plan.options.checkpoint_s3_uri, "LocalPath": str(into)})


def _localised(hyperparameters: dict[str, str], paths: Paths, folder: JobFolder) -> dict[str, str]:
    """Put this machine's folders in the place of the container's, in the one hyperparameter that names them."""
    places = {json.dumps(MODEL_DIR): str(paths.model), json.dumps(SHARED_MODEL_DIR): str(folder.shared / "model")}
    place = places.get(hyperparameters.get("model_dir", ""))
    if place is None:
        return hyperparameters
    os.makedirs(place, exist_ok=True)  # noqa: PTH103
    return {**hyperparameters, "model_dir": json.dumps(place)}


def _channel_config(channel: Channel, plan: JobPlan) -> dict[str, str]:
    config = {
        "TrainingInputMode": channel.input.input_mode or plan.options.input_mode,
        "S3DistributionType": channel.input.distribution or "FullyReplicated",
        "RecordWrapperType": "None",
    }
    if channel.input.content_type is not None:
        config["ContentType"] = channel.input.content_type
    return config


def _resource_config(plan: JobPlan, host: HostPlan) -> ResourceConfig:
    names = list(dict.fromkeys(each.group for each in plan.hosts))
    return ResourceConfig(
        current_host=host.name,
        hosts=tuple(each.name for each in plan.hosts),
        current_instance_type=host.instance_type,
        current_group_name=host.group,
        groups=tuple(
            HostGroup(name, host.instance_type, tuple(each.name for each in plan.hosts if each.group == name))
            for name in names
        ),
        network_interface=LOOPBACK,
    )
