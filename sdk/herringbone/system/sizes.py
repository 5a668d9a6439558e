"""Format numbers of bytes for messages."""

from __future__ import annotations


def shown_bytes(num_bytes: int) -> str:
    """Return a size in the largest unit of which it has at least one.

    >>> shown_bytes(12_345_678), shown_bytes(999)
    ('12.3 MB', '999 bytes')
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes} bytes"
