"""Tell from a file's structure whether it is complete, at the cost of its header: torch, Lightning, Keras, safetensors.

Raises `OSError` for a file that cannot be read.
"""

from __future__ import annotations

import json
import os
import zipfile
from typing import IO

_MAX_HEADER_BYTES = 1 << 28
# The place of the end of an HDF5 file, by the version of its superblock. Source: HDF5 File Format Specification 3.0.
_HDF5_END = {0: 40, 1: 44}
_HDF5_END_SINCE_2 = 28


def is_complete(stream: IO[bytes]) -> bool:
    """Report whether a zip archive, an HDF5 file or a safetensors file is as long as its directory or header says.

    A file of another form is not: nobody can tell.
    """
    size, head = os.fstat(stream.fileno()).st_size, stream.read(64)
    try:
        if head.startswith(b"PK"):
            # The directory is the end of an archive.
            return bool(zipfile.ZipFile(stream).filelist)
        if head.startswith(b"\x89HDF\r\n\x1a\n"):
            place = _HDF5_END.get(head[8], _HDF5_END_SINCE_2)
            return 0 < int.from_bytes(head[place : place + 8], "little") <= size
        count = int.from_bytes(head[:8], "little")
        if not 0 < count <= min(size, _MAX_HEADER_BYTES):
            return False
        stream.seek(8)
        header = json.loads(stream.read(count))
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        return bool(ends) and 8 + count + max(ends) == size
    except (zipfile.BadZipFile, ValueError, KeyError, TypeError, AttributeError, RecursionError, NotImplementedError):
        return False
