"""The room on a disk below which jobs are warned, and its text. Pure."""

from __future__ import annotations

from herringbone.sizes import shown_bytes

# Code, logs, checkpoints and a model, which is there twice while it is packed.
LOW_BYTES = 5_000_000_000


def low_disk_warning(free_bytes: int, folder: str) -> str | None:
    """Return the warning for a job that will write into `folder`; None where there is room.

    >>> low_disk_warning(1_200_000_000, "/home/me/.herringbone")
    'only 1.2 GB are free in /home/me/.herringbone, where the job will write; remove old jobs, or set HERRINGBONE_HOME'
    """
    if free_bytes >= LOW_BYTES:
        return None
    return (
        f"only {shown_bytes(free_bytes)} are free in {folder}, where the job will write; remove old jobs, or set "
        "HERRINGBONE_HOME"
    )
