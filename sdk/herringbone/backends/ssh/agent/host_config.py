"""The description of one host that a client sends to a machine: the plan, and where its files are on the machine."""

from __future__ import annotations

from typing import Any

import msgspec

from herringbone.plan.inputs import Channel
from herringbone.plan.plan import JobPlan, parse_plan
from herringbone.plan.source import SourceCode


class ChannelLocation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The data of one channel on a machine: the digest of an upload, or a `path` in a folder that all machines share.

    `file` is the file's name when the channel is a single file. `is_share`: the data is this host's share.
    """

    digest: str | None = None
    path: str | None = None
    file: str | None = None
    is_share: bool = False


class HostConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One host of a job that the agent is to start.

    `plan` is the plan of the whole job, with its secrets. `control` is the address where the job's supervisors connect
    and `key` is their common secret; both are None for a single host. `code` is the digest of the packed code, `data`
    the location of each channel. `interface` leads to the other hosts. `machines` maps each host to its machine, for
    clients that attach later. `settings` are environment variables for the supervisor. `checkpoints` is the digest of
    the checkpoints of earlier attempts, `image` the id of a container's image; each is None where there is none.
    `s3` has the address and the credentials with which the machine sends checkpoints to S3; see `on_s3.machine_s3`.
    `permit` is how long ranks may run without a word of the job's holder, in seconds, where machines retry the job.
    `spent` are the seconds of the job's limits in time that earlier attempts have used.

    The config travels through a pipe, so that no disk and no command line of the machine holds its secrets.
    """

    plan: dict[str, Any]
    host: str
    control: str | None
    key: str | None
    code: str
    data: dict[str, ChannelLocation]
    interface: str
    machines: dict[str, Any]
    settings: dict[str, str]
    checkpoints: str | None = None
    image: str | None = None
    s3: dict[str, Any] | None = None
    permit: float | None = None
    spent: float = 0.0


def localize(config: HostConfig, *, code: str, data_folder: str) -> JobPlan:
    """Return the plan with this machine's paths: `code` is the packed code, uploads are in `data_folder`. Pure."""
    plan = parse_plan(config.plan)
    assert plan.source is not None
    return msgspec.structs.replace(
        plan,
        # The client packs the job's output; the machine has no use for the client's folder.
        options=msgspec.structs.replace(plan.options, output_path=None),
        source=SourceCode(entry_point=plan.source.entry_point, archive=code),
        channels=tuple(_moved(channel, config.data.get(channel.name), data_folder) for channel in plan.channels),
        # All paths are absolute now, so relative ones have nothing to start from.
        folder="/",
    )


def _moved(channel: Channel, location: ChannelLocation | None, data_folder: str) -> Channel:
    if location is None:
        # The channel goes to other instance groups.
        return channel
    return msgspec.structs.replace(channel, path=channel_path(location, data_folder), is_share=location.is_share)


def channel_path(location: ChannelLocation, data_folder: str) -> str:
    """Return the path of a channel's data on a machine.

    >>> channel_path(ChannelLocation(digest="5f", file="digits.npz"), "/srv/data")
    '/srv/data/5f/digits.npz'
    """
    if location.path is not None:
        return location.path
    folder = f"{data_folder}/{location.digest}"
    return folder if location.file is None else f"{folder}/{location.file}"
