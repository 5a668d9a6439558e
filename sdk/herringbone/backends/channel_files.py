"""List the files of a channel on this machine, each with a hash of its content."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from herringbone.code.secret_files import looks_secret
from herringbone_contract.errors import InputError

_READ_BYTES = 1 << 20
# hashlib releases the interpreter lock, so threads help until the disk is the limit.
_HASH_THREADS = 4
# S3 accepts keys of 1,024 bytes, and the prefix needs some of them.
_MAX_NAME_BYTES = 800


class DataFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file with its name inside the channel; `sha256` is the hexadecimal hash of its content."""

    name: str
    path: Path
    num_bytes: int
    sha256: str


class ChannelData(msgspec.Struct, frozen=True, kw_only=True):
    """All files of a channel, sorted by name; `digest` is a hash over all names and contents."""

    digest: str
    files: tuple[DataFile, ...]

    @property
    def num_bytes(self) -> int:
        return sum(file.num_bytes for file in self.files)


def read_data(path: Path, channel: str) -> ChannelData:
    """Read a folder or a single file, and return its files with their hashes.

    >>> read_data(Path("data"), "training").digest[:8]       # doctest: +SKIP
    '0f4a61d3'

    Reads each file once, piece by piece. Raises `InputError` for a folder without files, a link that leaves the folder
    or leads nowhere, an entry that is neither a file nor a folder, a file that looks like a secret, and a file that
    cannot be read.
    """
    try:
        paths = list_files(path, channel)
        with ThreadPoolExecutor(_HASH_THREADS) as pool:
            files = tuple(pool.map(read_file, paths, paths.values()))
    except OSError as error:
        raise InputError(f"channel {channel!r}: {error.filename or path} cannot be read: {error.strerror}") from None
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.name}\0{file.sha256}\n".encode())
    return ChannelData(digest=digest.hexdigest(), files=files)


def list_files(path: Path, channel: str) -> dict[str, Path]:
    """Return the files of a folder, or a single file, by their names in the channel; see `read_data` for its errors."""
    paths = dict(_walk(path, "", (os.path.realpath(path),), channel)) if path.is_dir() else {path.name: path}
    _check_paths(paths, channel, path)
    return paths


def read_file(name: str, path: Path) -> DataFile:
    """Read a file from start to end, piece by piece."""
    sha256, num_bytes = hashlib.sha256(), 0
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_READ_BYTES):
            sha256.update(piece)
            num_bytes += len(piece)
    return DataFile(name=name, path=path, num_bytes=num_bytes, sha256=sha256.hexdigest())


def _walk(folder: Path, prefix: str, ancestors: tuple[str, ...], channel: str) -> Iterator[tuple[str, Path]]:
    """Yield name and path of each file below a folder; `ancestors` are the real paths from the root down to it."""
    with os.scandir(folder) as entries:
        # Sorted, because the digest depends on the order and os.scandir returns none.
        for entry in sorted(entries, key=lambda entry: entry.name):
            path, name = Path(entry.path), prefix + entry.name
            real_path = f"{ancestors[-1]}/{entry.name}"
            if entry.is_symlink():
                real_path = os.path.realpath(entry.path)
                _check_link(path, real_path, ancestors, channel)
            if entry.is_dir():
                yield from _walk(path, f"{name}/", (*ancestors, real_path), channel)
            elif entry.is_file():
                yield name, path
            else:
                raise InputError(f"channel {channel!r}: {path} is neither a file nor a folder; remove it")


def _check_link(path: Path, real_path: str, ancestors: tuple[str, ...], channel: str) -> None:
    if real_path in ancestors:
        raise InputError(f"channel {channel!r}: {path} is a link to {real_path}, which contains the link; remove it")
    if not real_path.startswith(f"{ancestors[0]}/"):
        raise InputError(
            f"channel {channel!r}: {path} is a link to {real_path}, outside the folder; copy the data into the folder, "
            f"or give {real_path} as a channel of its own"
        )


def _check_paths(paths: dict[str, Path], channel: str, root: Path) -> None:
    if not paths:
        raise InputError(f"channel {channel!r}: {root} has no files")
    for name, path in paths.items():
        try:
            too_long = len(name.encode()) > _MAX_NAME_BYTES
        except UnicodeEncodeError:
            raise InputError(f"channel {channel!r}: {path!r}: the name is not valid text; rename the file") from None
        if too_long:
            raise InputError(f"channel {channel!r}: {path}: the name is too long for S3; rename the file")
        if looks_secret(path):
            raise InputError(
                f"channel {channel!r}: {path} looks like a secret, and would be uploaded with the data; remove it, "
                "or upload the folder yourself and give its s3:// address"
            )
