"""The files of a channel that is a path on this machine, each with a digest of its content."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from herringbone.code.secret_files import looks_secret
from herringbone_contract.errors import InputError

_CHUNK_BYTES = 1 << 20
_THREADS = 4  # hashing lets go of the interpreter's lock; more than a few threads wait for the disk
_MAX_NAME_BYTES = 800  # S3 takes keys of 1,024 bytes, and the prefix needs room


class DataFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file under its name inside the channel; `sha256` is of its content, in hexadecimal."""

    name: str
    path: Path
    num_bytes: int
    sha256: str


class ChannelData(msgspec.Struct, frozen=True, kw_only=True):
    """All files of a channel, in the order of their names; `digest` is of names and contents."""

    digest: str
    files: tuple[DataFile, ...]

    @property
    def num_bytes(self) -> int:
        return sum(file.num_bytes for file in self.files)


def read_data(path: Path, channel: str) -> ChannelData:
    """Read a folder, or a lone file, and say what is in it.

    >>> read_data(Path("data"), "training").digest[:8]       # doctest: +SKIP
    '0f4a61d3'

    Every file is read once, from end to end, a piece at a time. Raises `InputError` for a folder without files, a link
    that leaves the folder or leads nowhere, what is neither file nor folder, a file that looks like a secret, and one
    that cannot be read.
    """
    try:
        found = dict(_walk(path, "", (os.path.realpath(path),), channel)) if path.is_dir() else {path.name: path}
        _check(found, channel, path)
        with ThreadPoolExecutor(_THREADS) as pool:
            files = tuple(pool.map(read_file, found, found.values()))
    except OSError as error:
        raise InputError(f"channel {channel!r}: {error.filename or path} cannot be read: {error.strerror}") from None
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.name}\0{file.sha256}\n".encode())
    return ChannelData(digest=digest.hexdigest(), files=files)


def _walk(folder: Path, above: str, trail: tuple[str, ...], channel: str) -> Iterator[tuple[str, Path]]:
    """Yield the files of one folder and those inside it; `trail` are the true paths of the folders walked through."""
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda each: each.name):
            path, name = Path(entry.path), above + entry.name
            real = f"{trail[-1]}/{entry.name}"
            if entry.is_symlink():
                real = os.path.realpath(entry.path)
                _check_link(path, real, trail, channel)
            if entry.is_dir():
                yield from _walk(path, f"{name}/", (*trail, real), channel)
            elif entry.is_file():
                yield name, path
            else:
                raise InputError(f"channel {channel!r}: {path} is neither a file nor a folder; remove it")


def _check_link(path: Path, real: str, trail: tuple[str, ...], channel: str) -> None:
    if real in trail:
        raise InputError(f"channel {channel!r}: {path} is a link to {real}, a folder that it lies in; remove it")
    if not real.startswith(f"{trail[0]}/"):
        raise InputError(
            f"channel {channel!r}: {path} is a link to {real}, outside of the folder; copy the data in, or give {real} "
            "as a channel of its own"
        )


def _check(found: dict[str, Path], channel: str, path: Path) -> None:
    if not found:
        raise InputError(f"channel {channel!r}: {path} has no files")
    for name, file in found.items():
        try:
            too_long = len(name.encode()) > _MAX_NAME_BYTES
        except UnicodeEncodeError:
            raise InputError(f"channel {channel!r}: {file!r}: its name is no text; rename it") from None
        if too_long:
            raise InputError(f"channel {channel!r}: {file}: its name is too long for S3; rename it")
        if looks_secret(file):
            raise InputError(
                f"channel {channel!r}: {file} looks like a secret, and would be uploaded with the data; take it out, "
                "or upload the folder yourself and give its s3:// address"
            )


def read_file(name: str, path: Path) -> DataFile:
    """Read a file from end to end, a piece at a time."""
    sha256, num_bytes = hashlib.sha256(), 0
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_CHUNK_BYTES):
            sha256.update(piece)
            num_bytes += len(piece)
    return DataFile(name=name, path=path, num_bytes=num_bytes, sha256=sha256.hexdigest())
