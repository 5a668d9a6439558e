"""Checks the members of an untrusted archive: none may land outside its folder, or link to a path outside."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path
from typing import Any

# Python 3.10 before its twelfth patch has no filters, so `problem` does the checks of `data_filter` on all versions.
_TRUSTED: dict[str, Any] = {"filter": "fully_trusted"} if hasattr(tarfile, "data_filter") else {}


def extract(archive: tarfile.TarFile, member: tarfile.TarInfo, into: Path) -> None:
    """Unpack a member that has no `problem`; the caller owns the result and can read it."""
    # The owner on another machine means nothing here, and the caller must be able to read and remove the file.
    member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
    member.mode = (member.mode & 0o777) | (0o700 if member.isdir() else 0o600)
    archive.extract(member, into, **_TRUSTED)


def problem(member: tarfile.TarInfo, into: Path) -> str | None:
    """Return why a member must not be unpacked into a folder; None when it may.

    Ask after the members before it were unpacked: one of them may be a link that this one passes through.

    >>> problem(tarfile.TarInfo("../.bashrc"), Path("model"))
    'it would land outside'
    """
    if not (member.isfile() or member.isdir() or member.issym() or member.islnk()):
        return "it is not a file, a folder or a link"
    root = into.resolve()
    if os.path.isabs(member.name) or not (into / member.name).parent.resolve().is_relative_to(root):  # noqa: PTH117
        return "it would land outside"
    if member.issym() and not ((into / member.name).parent / member.linkname).resolve().is_relative_to(root):
        return f"it is a link to {member.linkname}, outside"
    if member.islnk() and not (into / member.linkname).resolve().is_relative_to(root):
        return f"it is a link to {member.linkname}, outside"
    return None
