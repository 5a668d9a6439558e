"""Folders of a job over a connection between keepers: checkpoints, logs. A tar, packed and unpacked on the way."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

from herringbone.backends.ssh.keepers.sealed import PIECE_BYTES, FrameStream, Sealed
from herringbone_contract import safe_tree
from herringbone_contract.archives import unpack


def send_tree(base: Path, inside: str, sealed: Sealed) -> None:
    """Send the folder `inside` of `base`. No link is followed, neither to the folder nor below it.

    Raises `OSError`, also for a file that changes meanwhile.
    """
    stream = FrameStream(sealed)
    with (
        safe_tree.folder(base, inside) as top,
        tarfile.open(fileobj=stream.file, mode="w|", format=tarfile.PAX_FORMAT, bufsize=PIECE_BYTES) as tar,
    ):
        for entry in safe_tree.walk(top):
            member = tarfile.TarInfo(entry.name)
            member.mode = entry.state.st_mode & 0o777
            # Of two files with one name the newer counts, and jobs know their checkpoints by it: all digits.
            member.pax_headers = {"mtime": str(Decimal(entry.state.st_mtime_ns) / 10**9)}
            if entry.kind == "file":
                member.size = entry.state.st_size
                with safe_tree.open_file(top, entry.name) as file:
                    tar.addfile(member, file)
            elif entry.kind in ("folder", "link"):
                member.type = tarfile.DIRTYPE if entry.kind == "folder" else tarfile.SYMTYPE
                member.linkname = entry.target
                tar.addfile(member)
    stream.finish()


def receive_tree(
    sealed: Sealed, into: Path, *, root: str, shown: str, refused: Callable[[str, str], None] = lambda *_: None
) -> None:
    """Make the folder `into` equal to a sent one, completely or not at all.

    Links that lead outside and special files are left out; `refused` gets their names and the reasons. An absolute
    link below `root`, the folder where it was sent, becomes a relative one.
    """
    partial = into.with_name(f".{into.name}.part")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    unpack(FrameStream(sealed).file, partial, shown=shown, root=root, refused=refused)
    shutil.rmtree(into, ignore_errors=True)
    partial.replace(into)
