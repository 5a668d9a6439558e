"""Unpack a code archive from an unknown author: no member may land outside its folder."""

from __future__ import annotations

import zlib
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from herringbone_contract.errors import ArchiveError, InputError

if TYPE_CHECKING:
    import tarfile


def extract(archive: Path, folder: Path) -> None:
    """Unpack a tar file, compressed or not, into `folder`.

    Raises `ArchiveError` when it is damaged, or a member would land or point outside `folder`. Nothing is then written
    outside. Raises `InputError` when there is no such file.
    """
    import tarfile  # most jobs come with a filled folder, and never need this module

    if not archive.is_file():
        raise InputError(f"code archive {archive} does not exist on this host")
    try:
        with tarfile.open(archive) as tar:
            members = tar.getmembers()
            for member in members:
                check(member, archive)
            # Python 3.10 before its twelfth patch has no filters, so our own checks must suffice without them.
            filters: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            for member in members:
                check_parent(folder, member, archive)
                tar.extract(member, folder, **filters)
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise ArchiveError(f"code archive {archive} cannot be unpacked: {error}; it is damaged or cut short") from error


def check(member: tarfile.TarInfo, archive: Path) -> None:
    """Refuse a member that would reach outside: an absolute name, `..`, a link out of the folder, a device.

    Raises `ArchiveError` with the member's name.
    """
    name = PurePosixPath(member.name)
    if name.is_absolute() or ".." in name.parts:
        raise ArchiveError(
            f"code archive {archive}: member {member.name!r} lies outside the folder; nothing was unpacked"
        )
    if member.issym() or member.islnk():
        # A symbolic link's target is relative to its own folder, a hard link's to the archive's root.
        start = name.parent if member.issym() else PurePosixPath()
        depth = 0
        for part in (start / member.linkname).parts:
            depth += -1 if part == ".." else 1
            if depth < 0 or part == "/":
                raise ArchiveError(
                    f"code archive {archive}: link {member.name!r} points to {member.linkname!r}, outside the folder; "
                    "nothing was unpacked"
                )
    elif not (member.isfile() or member.isdir()):
        raise ArchiveError(f"code archive {archive}: member {member.name!r} is neither file nor folder nor link")


def check_parent(folder: Path, member: tarfile.TarInfo, archive: Path) -> None:
    """Refuse to follow unpacked links that only lead outside in combination (`a -> .`, `b -> a/..`)."""
    if not (folder / member.name).parent.resolve().is_relative_to(folder.resolve()):
        raise ArchiveError(
            f"code archive {archive}: member {member.name!r} would land outside the folder, behind a link"
        )
