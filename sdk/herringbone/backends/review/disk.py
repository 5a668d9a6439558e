"""The room on the disks that a job will write to, and the warnings about it. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from herringbone.system.sizes import shown_bytes

# Code, logs, checkpoints and a model, which is there twice while it is packed.
LOW_BYTES = 5_000_000_000


def low_disk_warnings(free: Mapping[str, int]) -> tuple[str, ...]:
    """Return a warning for each folder that the job will write to and that has little room; `free` is in bytes.

    >>> low_disk_warnings({"/home/me/.herringbone": 1_200_000_000, "/checkpoints": 80_000_000_000})
    ('only 1.2 GB are free in /home/me/.herringbone, where the job will write: free some, or set HERRINGBONE_HOME',)
    """
    return tuple(
        f"only {shown_bytes(size)} are free in {folder}, where the job will write: free some, or {_REMEDIES[at > 0]}"
        for at, (folder, size) in enumerate(free.items())
        if size < LOW_BYTES
    )


# The first folder is always the home.
_REMEDIES = ("set HERRINGBONE_HOME", "give another folder")
