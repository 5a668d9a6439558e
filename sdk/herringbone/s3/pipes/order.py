"""The order for the process that fills a job's FIFOs, and the FIFOs of a host's tree."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from herringbone.aws.location import is_s3
from herringbone.aws.session import Access
from herringbone.plan.channels import is_augmented, is_piped, is_streamed
from herringbone.plan.host_tree import channels_of, position_of
from herringbone.plan.inputs import Channel
from herringbone.plan.plan import HostPlan, JobPlan
from herringbone_contract.paths import INSIDE

_MODE = 0o600


class Pipe(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The FIFOs of one channel of one host. `base` is the base folder of the host's tree.

    `data` is a folder or a file of this machine, an augmented manifest where there are `attributes`, or a list of
    objects where `is_listing`. `position` is the host's among the `hosts` that share the channel. `address` is the
    channel's address, for messages.
    """

    base: str
    channel: str
    address: str
    data: str
    is_listing: bool = False
    attributes: tuple[str, ...] = ()
    wrap: bool = False
    gzip: bool = False
    seed: int | None = None
    position: int = 0
    hosts: int = 1


class FeedOrder(msgspec.Struct, frozen=True, kw_only=True):
    """All FIFOs of a job. `access` has the credentials for S3, so the order travels through a pipe."""

    pipes: tuple[Pipe, ...]
    access: Access = Access()


def feed_order(
    plan: JobPlan, bases: Sequence[tuple[HostPlan, Path]], access: dict[str, str] | None = None
) -> dict[str, Any] | None:
    """Return the order for hosts with these base folders, as plain values; None for a job without Pipe mode."""
    pipes = tuple(
        _pipe(channel, plan, host, base)
        for host, base in bases
        for channel in channels_of(plan, host)
        if is_piped(channel, plan)
    )
    if not pipes:
        return None
    order = FeedOrder(pipes=pipes, access=msgspec.convert(access or {}, Access))
    content: dict[str, Any] = msgspec.to_builtins(order)
    return content


def reads_while_running(plan: JobPlan) -> bool:
    """Report whether the process that fills the FIFOs reads from S3 while the job runs."""
    return any(
        is_streamed(channel, plan) or (is_piped(channel, plan) and is_augmented(channel)) for channel in plan.channels
    )


def fifo_name(channel: str, epoch: int) -> str:
    """Return the name of the FIFO of an epoch, as on SageMaker.

    >>> fifo_name("training", 0)
    'training_0'
    """
    return f"{channel}_{epoch}"


def renew_fifos(pipe: Pipe, *, keep: bool) -> None:
    """Remove the FIFOs of earlier epochs of an attempt that is over; with `keep`, make that of the first epoch.

    The folder is the script's, which may have replaced parts of it: links are not followed.
    """
    from herringbone_contract import safe_tree

    with safe_tree.folder(pipe.base, str(INSIDE.data)) as data:
        for name in os.listdir(data):  # noqa: PTH208 - a descriptor
            channel, _, epoch = name.rpartition("_")
            if channel == pipe.channel and epoch.isdecimal():
                with suppress(FileNotFoundError):
                    if stat.S_ISFIFO(os.lstat(name, dir_fd=data).st_mode):
                        os.unlink(name, dir_fd=data)
        if keep:
            with suppress(FileExistsError):
                os.mkfifo(fifo_name(pipe.channel, 0), _MODE, dir_fd=data)


def _pipe(channel: Channel, plan: JobPlan, host: HostPlan, base: Path) -> Pipe:
    assert channel.path is not None
    source = channel.input
    position, hosts = position_of(channel, plan, host) if channel.is_split else (0, 1)
    return Pipe(
        base=str(base),
        channel=channel.name,
        address=source.s3_data if is_s3(source.s3_data) else channel.path,
        data=channel.path,
        is_listing=is_streamed(channel, plan),
        attributes=(source.attribute_names or ()) if is_augmented(channel) else (),
        wrap=source.record_wrapping == "RecordIO",
        gzip=source.compression == "Gzip",
        seed=None if source.shuffle_config is None else source.shuffle_config.seed,
        position=position,
        hosts=hosts,
    )
