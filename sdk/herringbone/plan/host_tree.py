"""The files of the contract's tree that processes and containers of this machine share."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from herringbone.plan.channels import input_mode
from herringbone.plan.inputs import Channel
from herringbone.plan.plan import HostPlan, JobPlan
from herringbone_contract.paths import Paths
from herringbone_contract.resources import HostGroup, ResourceConfig

_FIFO_MODE = 0o600


def make_folders(paths: Paths) -> None:
    """Create the folders of a host's tree, except for its channels and its checkpoints."""
    for path in (paths.config, paths.data, paths.code, paths.model, paths.output_data):
        Path(path).mkdir(parents=True, exist_ok=True)


def write_config(
    plan: JobPlan, host: HostPlan, paths: Paths, *, hyperparameters: dict[str, str], interface: str
) -> None:
    """Write the files of `input/config`; `interface` is the name of the network interface on the host."""
    write_json(paths.hyperparameters, hyperparameters)
    write_json(paths.input_data_config, channel_configs(plan, host))
    write_json(paths.resource_config, resource_config_of(plan, host, interface))


def channel_configs(plan: JobPlan, host: HostPlan) -> dict[str, dict[str, str]]:
    """Return the content of inputdataconfig.json."""
    return {channel.name: _channel_config(channel, plan) for channel in channels_of(plan, host)}


def channels_of(plan: JobPlan, host: HostPlan) -> list[Channel]:
    """Return the channels that this host gets."""
    return [channel for channel in plan.channels if _goes_to(channel, host)]


def position_of(channel: Channel, plan: JobPlan, host: HostPlan) -> tuple[int, int]:
    """Return the host's position among the hosts that share a channel, from 0, and their number."""
    # Hosts of other instance groups do not get the channel and take no share of it.
    sharers = [sharer.name for sharer in plan.hosts if _goes_to(channel, sharer)]
    return sharers.index(host.name), len(sharers)


def make_fifo(channel: Channel, paths: Paths) -> None:
    """Make the FIFO of a channel's first epoch; `herringbone.s3.pipes` fills it, and makes the others."""
    fifo = Path(paths.channel(f"{channel.name}_0"))
    os.mkfifo(fifo, _FIFO_MODE)


def write_json(path: Any, content: object) -> None:
    Path(path).write_text(json.dumps(content))


def _goes_to(channel: Channel, host: HostPlan) -> bool:
    return channel.input.instance_groups is None or host.group in channel.input.instance_groups


def _channel_config(channel: Channel, plan: JobPlan) -> dict[str, str]:
    config = {
        "TrainingInputMode": input_mode(channel, plan),
        "S3DistributionType": channel.input.distribution or "FullyReplicated",
        "RecordWrapperType": channel.input.record_wrapping or "None",
    }
    if channel.input.content_type is not None:
        config["ContentType"] = channel.input.content_type
    return config


def resource_config_of(plan: JobPlan, host: HostPlan, interface: str) -> dict[str, Any]:
    """Return the content of resourceconfig.json."""
    # Each group has one instance type, so any of its hosts tells it.
    types = {member.group: member.instance_type for member in plan.hosts}
    config = ResourceConfig(
        current_host=host.name,
        hosts=tuple(member.name for member in plan.hosts),
        current_instance_type=host.instance_type,
        current_group_name=host.group,
        groups=tuple(
            HostGroup(name, instance_type, tuple(member.name for member in plan.hosts if member.group == name))
            for name, instance_type in types.items()
        ),
        network_interface=interface,
    )
    return config.to_json()
