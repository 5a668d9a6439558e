"""The mode in which each channel arrives, and the settings of channels that own hosts refuse. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from herringbone.aws.location import is_s3
from herringbone.plan.inputs import Channel
from herringbone.plan.plan import JobPlan
from herringbone_contract.errors import InputError

# Backends whose hosts are on the submitting machine: their channels of Pipe mode need no copy of the objects.
_STREAMING = ("local_process", "local")
_ONLY_PIPE = "is for Pipe mode; give input_mode='Pipe', or leave it out"


def input_mode(channel: Channel, plan: JobPlan) -> str:
    """Return File, Pipe or FastFile: the channel's own mode, or that of the job. A model is always files.

    >>> input_mode(plan.channels[0], plan)                              # doctest: +SKIP
    'Pipe'
    """
    if plan.options.model_uri is not None and channel.name == plan.options.model_channel_name:
        return channel.input.input_mode or "File"
    return channel.input.input_mode or plan.options.input_mode


def is_piped(channel: Channel, plan: JobPlan) -> bool:
    """Report whether scripts read the channel from FIFOs."""
    return input_mode(channel, plan) == "Pipe"


def is_streamed(channel: Channel, plan: JobPlan) -> bool:
    """Report whether the objects of a channel go from the bucket into FIFOs, without a copy on a disk."""
    return (
        is_piped(channel, plan)
        and is_s3(channel.input.s3_data)
        and channel.input.s3_data_type != "AugmentedManifestFile"
        and plan.backend in _STREAMING
    )


def is_augmented(channel: Channel) -> bool:
    """Report whether the channel is an AugmentedManifestFile."""
    return channel.input.s3_data_type == "AugmentedManifestFile"


def refused_channels(plan: JobPlan) -> dict[str, str]:
    """Return the reasons why own hosts refuse settings of channels, by the name of what is refused."""
    refusals = {}
    names = {channel.name for channel in plan.channels}
    for channel in plan.channels:
        reason = _refused_in_pipe(channel, plan) if is_piped(channel, plan) else _refused_in_files(channel)
        writes = channel.file_system is not None and channel.file_system.file_system_access_mode == "rw"
        if writes and plan.backend != "local_process":
            reason = (
                "local_process alone lets scripts write into a channel; leave file_system_access_mode='rw' out, and "
                "write below output_path"
            )
        if not reason and channel.input.s3_data_type == "ManifestFile" and not is_s3(channel.input.s3_data):
            reason = "a ManifestFile lists objects of S3, so its own address is s3://, too"
        if not reason and is_piped(channel, plan):
            taken = next((name for name in names if _is_epoch_of(name, channel.name)), None)
            reason = f"its FIFO has the name of channel {taken}; rename one of them" if taken else ""
        if reason:
            refusals[f"channel {channel.name}"] = reason
    return refusals


def check_shares(channel: Channel, plan: JobPlan, files: Iterable[object]) -> None:
    """Raise `InputError` for a channel that is divided among more hosts than it has files; reads no more of them."""
    groups = channel.input.instance_groups
    hosts = sum(groups is None or host.group in groups for host in plan.hosts)
    if not channel.is_split or hosts < 2 or (count := sum(1 for _ in islice(files, hosts))) == hosts:
        return
    raise InputError(
        f"channel {channel.name!r}: distribution='ShardedByS3Key' divides {count} file{'s' * (count != 1)} of "
        f"{channel.input.s3_data} among {hosts} hosts, so {hosts - count} would train on nothing: take fewer hosts, "
        "split the data into more files, or leave distribution out, and every host gets all files"
    )


def _refused_in_files(channel: Channel) -> str:
    source = channel.input
    if source.compression == "Gzip":
        return f"compression='Gzip' {_ONLY_PIPE}"
    if source.record_wrapping == "RecordIO":
        return f"record_wrapping='RecordIO' {_ONLY_PIPE}"
    if is_augmented(channel):
        return (
            "an AugmentedManifestFile is read in Pipe mode; give input_mode='Pipe', or list objects in a ManifestFile"
        )
    if source.attribute_names:
        return "attribute_names are those of an AugmentedManifestFile; leave them out"
    if source.shuffle_config is not None:
        return f"shuffle_config {_ONLY_PIPE}"
    return ""


def _refused_in_pipe(channel: Channel, plan: JobPlan) -> str:
    source = channel.input
    if plan.backend == "slurm":
        return (
            "a FIFO works on one node alone, and the process that fills it runs on the first one; "
            "use input_mode='File', whose files all nodes see"
        )
    if is_augmented(channel):
        if plan.backend == "ssh":
            return "machines get no credentials to read what an AugmentedManifestFile refers to; use a ManifestFile"
        if not source.attribute_names:
            return "an AugmentedManifestFile needs attribute_names, such as ('source-ref', 'label')"
        if source.compression == "Gzip":
            return "compression='Gzip' does not go with an AugmentedManifestFile; leave it out"
    elif source.attribute_names:
        return "attribute_names need s3_data_type='AugmentedManifestFile'"
    return ""


def _is_epoch_of(name: str, channel: str) -> bool:
    return name.startswith(f"{channel}_") and name[len(channel) + 1 :].isdecimal()
