"""The uploads of a job: code and data under a digest of their content, so that nothing is sent twice."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from herringbone.backends.ssh.agent.host_config import ChannelLocation
from herringbone.code.archive import pack_code
from herringbone.plan.channels import is_piped
from herringbone.plan.host_tree import channels_of, position_of
from herringbone.plan.inputs import Channel, share
from herringbone.plan.plan import HostPlan, JobPlan
from herringbone.plan.source import SourceCode
from herringbone_contract.errors import InputError


class Upload(msgspec.Struct, frozen=True, kw_only=True):
    """A folder or a single file of this machine, to be sent to others."""

    digest: str
    path: Path


class PackedCode(msgspec.Struct, frozen=True, kw_only=True):
    """An archive of code; `digest` is that of its content."""

    digest: str
    path: Path


def pack_source(source: SourceCode, into: Path, *, exclude: Path) -> PackedCode:
    """Pack a job's code into the folder `into`; code that is an archive already is used as it is."""
    if source.archive is None:
        packed = pack_code(source, into, exclude=exclude)
        return PackedCode(digest=packed.digest, path=packed.path)
    path = Path(source.archive)
    return PackedCode(digest=hashlib.sha256(path.read_bytes()).hexdigest(), path=path)


def uploads_of(
    channels: Iterable[Channel], shared: Iterable[str]
) -> tuple[dict[str, ChannelLocation], dict[str, Upload]]:
    """Return where a machine finds each channel, by name, and what must be sent for that, by digest.

    Data in one of the `shared` folders is not sent, because every machine sees it.
    """
    locations: dict[str, ChannelLocation] = {}
    uploads: dict[str, Upload] = {}
    for channel in channels:
        assert channel.path is not None
        path = Path(channel.path)
        if is_shared(path, shared):
            locations[channel.name] = ChannelLocation(path=str(path))
            continue
        upload = Upload(digest=digest_of(path, channel.name), path=path)
        locations[channel.name] = ChannelLocation(digest=upload.digest, file=None if path.is_dir() else path.name)
        # Two channels with the same data are one upload.
        uploads[upload.digest] = upload
    return locations, uploads


class Shares(NamedTuple):
    """One host's shares of channels: where its machine finds them, and what must be sent for that."""

    locations: dict[str, ChannelLocation]
    uploads: dict[str, Upload]


def has_shares(channel: Channel, plan: JobPlan) -> bool:
    """Report whether each host gets a share of a channel, and not all of it.

    In Pipe mode with `shuffle_config`, shares change from epoch to epoch, so each machine gets the whole channel.
    """
    if is_piped(channel, plan) and channel.input.shuffle_config is not None:
        return False
    return channel.sharded and len(plan.hosts) > 1 and channel.path is not None and Path(channel.path).is_dir()


def shares_of(plan: JobPlan, host: HostPlan, shared: Iterable[str], scratch: Path) -> Shares:
    """Return a host's shares of channels, as folders of links below `scratch`; the copy to a machine follows links.

    Every host takes every n-th file of the sorted list. Data in a `shared` folder is not sent: the machine takes its
    share there.
    """
    shares = Shares({}, {})
    for channel in channels_of(plan, host):
        if not has_shares(channel, plan):
            continue
        data = Path(str(channel.path))
        if is_shared(data, shared):
            shares.locations[channel.name] = ChannelLocation(path=str(data))
            continue
        position, hosts = position_of(channel, plan, host)
        links = scratch / host.name / channel.name
        links.mkdir(parents=True)
        for file in share(sorted(path for path in data.rglob("*") if path.is_file()), host=position, hosts=hosts):
            link = links / file.relative_to(data)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(file)
        upload = Upload(digest=digest_of(links, channel.name), path=links)
        shares.locations[channel.name] = ChannelLocation(digest=upload.digest, is_share=True)
        shares.uploads[upload.digest] = upload
    return shares


def is_shared(path: Path, shared: Iterable[str]) -> bool:
    """Report whether a path is in one of these folders.

    >>> is_shared(Path("/nfs/data/a"), ["/nfs/data"]), is_shared(Path("/nfs/database"), ["/nfs/data"])
    (True, False)
    """
    return any(path == Path(folder) or Path(folder) in path.parents for folder in shared)


def digest_of(path: Path, channel: str) -> str:
    """Return a digest of the files' names, sizes and times. Raises `InputError` for a file that cannot be read."""
    # rsync, too, detects a changed file by size and time. Reading large channels at every start would cost minutes.
    digest = hashlib.sha256()
    try:
        for name, file in _files(path):
            state = file.stat()
            digest.update(f"{name}\0{state.st_size}\0{state.st_mtime_ns}\n".encode(errors="surrogateescape"))
    except OSError as error:
        raise InputError(f"channel {channel!r}: {error.filename or path} cannot be read: {error.strerror}") from None
    return digest.hexdigest()


def _files(path: Path) -> Iterator[tuple[str, Path]]:
    if not path.is_dir():
        yield path.name, path
        return
    visited: set[str] = set()
    for inside, folders, names in os.walk(path, followlinks=True):
        # A link to a folder above would otherwise make the walk endless.
        real = os.path.realpath(inside)
        if real in visited:
            folders.clear()
            continue
        visited.add(real)
        # `os.walk` visits the folders in the order of this list: the digest must not depend on the file system.
        folders.sort()
        for name in sorted(names):
            file = Path(inside, name)
            yield file.relative_to(path).as_posix(), file
