"""Name the full disk in the failure of a rank. Only a failed job imports this module."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from herringbone_contract.failure import Failure
from herringbone_contract.paths import Paths

# A file that did not fit has filled its disk but for a few blocks.
_FULL_BYTES = 8 << 20
_REMEDY = "remove files there, or run the job with more room: HERRINGBONE_HOME, output_path, checkpoint_s3_uri"


def free_bytes(paths: Paths) -> dict[str, int]:
    """Return the free bytes of the folders that a script writes to; folders of one disk count once."""
    free: dict[int, tuple[str, int]] = {}
    for folder in (paths.checkpoints, paths.model, paths.output_data):
        with contextlib.suppress(OSError):
            disk = os.statvfs(folder)
            free.setdefault(Path(folder).stat().st_dev, (str(folder), disk.f_bavail * disk.f_frsize))
    return dict(free.values())


def with_full_disk(failure: Failure, free: Mapping[str, int]) -> Failure:
    """Return the failure with the full disks in its message; `free` are the free bytes by folder. Pure.

    >>> failure = Failure(exception="RuntimeError", message="[enforce fail at inline_container.cc:671]")
    >>> with_full_disk(failure, {"/opt/ml/checkpoints": 0}).message.partition("; remove")[0]
    '[enforce fail at inline_container.cc:671] (the disk of /opt/ml/checkpoints is full: 0 MB are free'
    """
    full = [f"{folder} is full: {size / 1e6:.0f} MB are free" for folder, size in free.items() if size < _FULL_BYTES]
    if not full:
        return failure
    reason = f"the disk of {', and that of '.join(full)}; {_REMEDY}"
    return failure._replace(message=f"{failure.message} ({reason})" if failure.message else reason)
