"""Folders of a job over a connection between keepers: checkpoints, logs. A tar, packed and unpacked on the way."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import IO

from herringbone.backends.ssh.keepers.sealed import PIECE_BYTES
from herringbone_contract import safe_tree
from herringbone_contract.archives import unpack


def send_tree(base: Path, inside: str, stream: IO[bytes]) -> None:
    """Write the folder `inside` of `base` into a stream. No link is followed, neither to the folder nor below it.

    Raises `OSError`, also for a file that changes meanwhile.
    """
    with (
        safe_tree.folder(base, inside) as top,
        tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT, bufsize=PIECE_BYTES) as tar,
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


def receive_tree(stream: IO[bytes], into: Path, *, root: str, shown: str, refused: Callable[[str, str], None]) -> None:
    """Make the folder `into` equal to a sent one, completely or not at all.

    Links that lead outside and special files are left out; `refused` gets their names and the reasons. An absolute
    link below `root`, the folder where it was sent, becomes a relative one.
    """
    partial = into.with_name(f".{into.name}.part")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    unpack(stream, partial, shown=shown, root=root, refused=refused)
    shutil.rmtree(into, ignore_errors=True)
    partial.replace(into)
