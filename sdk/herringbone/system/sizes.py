"""Format numbers of bytes for people: files in GB, as disks are sold, and memory in GiB, as devices are sold."""

from __future__ import annotations

from herringbone.system.texts import NONE


def shown_bytes(num_bytes: float | None) -> str:
    """Return the size of a file in the largest unit of which it has at least one; `NONE` for None.

    >>> shown_bytes(12_345_678), shown_bytes(999)
    ('12.3 MB', '999 bytes')

    `static/dom.js` of the page writes sizes in the same way.
    """
    return _shown(num_bytes, 1000, ("KB", "MB", "GB", "TB"))


def shown_memory(num_bytes: float | None) -> str:
    """Return an amount of memory in the largest unit of which it has at least one; `NONE` for None.

    >>> shown_memory(24 << 30), shown_memory(3 << 20)
    ('24.0 GiB', '3.0 MiB')
    """
    return _shown(num_bytes, 1024, ("KiB", "MiB", "GiB"))


def _shown(num_bytes: float | None, base: int, units: tuple[str, ...]) -> str:
    if num_bytes is None:
        return NONE
    for power in range(len(units), 0, -1):
        if num_bytes >= base**power:
            return f"{num_bytes / base**power:.1f} {units[power - 1]}"
    return f"{num_bytes:.0f} bytes"
