"""What a job sends to its machines, each thing under a digest of what it is: what is there already stays at home."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from herringbone.backends.ssh.agent.host_config import Delivery
from herringbone.code.archive import pack_code
from herringbone.code.source import SourceCode
from herringbone.estimators.inputs import Channel
from herringbone_contract.errors import InputError


class Parcel(msgspec.Struct, frozen=True, kw_only=True):
    """A folder, or a lone file, of this machine that goes to others."""

    digest: str
    path: Path


class Code(msgspec.Struct, frozen=True, kw_only=True):
    """Packed code; `digest` is of what is inside."""

    digest: str
    path: Path


def code_of(source: SourceCode, into: Path, *, but_not: Path) -> Code:
    """Pack a job's code in the folder `into`, or take the archive that it is."""
    if source.archive is None:
        packed = pack_code(source, into, but_not=but_not)
        return Code(digest=packed.digest, path=packed.path)
    path = Path(source.archive)
    return Code(digest=hashlib.sha256(path.read_bytes()).hexdigest(), path=path)


def parcels_of(channels: Iterable[Channel], shared: Iterable[str]) -> tuple[dict[str, Delivery], dict[str, Parcel]]:
    """Return where each channel's data will be on a machine, by its name, and what must go there for it, by digest.

    Data below one of the `shared` folders is seen everywhere, and goes nowhere.
    """
    deliveries: dict[str, Delivery] = {}
    parcels: dict[str, Parcel] = {}
    for channel in channels:
        assert channel.path is not None
        path = Path(channel.path)
        if is_shared(path, shared):
            deliveries[channel.name] = Delivery(path=str(path))
            continue
        parcel = Parcel(digest=digest_of(path, channel.name), path=path)
        deliveries[channel.name] = Delivery(digest=parcel.digest, file=None if path.is_dir() else path.name)
        parcels[parcel.digest] = parcel
    return deliveries, parcels


def is_shared(path: Path, shared: Iterable[str]) -> bool:
    """Say whether a path lies in one of these folders.

    >>> is_shared(Path("/nfs/data/a"), ["/nfs/data"]), is_shared(Path("/nfs/database"), ["/nfs/data"])
    (True, False)
    """
    return any(path == Path(folder) or Path(folder) in path.parents for folder in shared)


def digest_of(path: Path, channel: str) -> str:
    """Return a digest of the files' names, sizes and times, by which rsync too knows whether a file has changed.

    Reading the files themselves would cost minutes where there are many, at every start. Raises `InputError`.
    """
    digest = hashlib.sha256()
    try:
        for name, file in _files(path):
            found = file.stat()
            digest.update(f"{name}\0{found.st_size}\0{found.st_mtime_ns}\n".encode(errors="surrogateescape"))
    except OSError as error:
        raise InputError(f"channel {channel!r}: {error.filename or path} cannot be read: {error.strerror}") from None
    return digest.hexdigest()


def _files(path: Path) -> Iterator[tuple[str, Path]]:
    if not path.is_dir():
        yield path.name, path
        return
    trail: set[str] = set()
    for inside, folders, names in os.walk(path, followlinks=True):
        # A link to a folder above would lead round for ever.
        real = os.path.realpath(inside)
        if real in trail:
            folders.clear()
            continue
        trail.add(real)
        folders.sort()
        for name in sorted(names):
            file = Path(inside, name)
            yield file.relative_to(path).as_posix(), file
