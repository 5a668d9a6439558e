"""The end of a job in the job's own folder, for the time in which nobody can write it into the index.

The controller reserves the file when the job starts, so that the end can be written on a disk that is full by then.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

# A failure with its frames and the last lines of the log has about half of this.
RESERVED_BYTES = 128 << 10


class EndFile:
    """One job's file: JSON, followed by NUL bytes; only NUL bytes while the job runs.

    >>> EndFile(Path("no-such-job/end.json")).read() is None
    True
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def reserve(self) -> None:
        """Take the room on the disk. On a disk that is full already, nothing is reserved."""
        try:
            # Written and not `posix_fallocate`, which some file systems lack.
            self._path.write_bytes(bytes(RESERVED_BYTES))
        except OSError:
            self.remove()

    def write(self, columns: dict[str, Any]) -> bool:
        """Write the columns of a job that is over; return whether that was possible."""
        content = json.dumps(columns).encode()
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                # In place: a new file would need room on the disk.
                return os.pwrite(descriptor, content, 0) == len(content)
            finally:
                os.close(descriptor)
        except OSError:
            return False

    def read(self) -> dict[str, Any] | None:
        """Return the columns; None while the job runs, and for a file that is not complete."""
        try:
            with self._path.open("rb", buffering=0) as file:
                # Callers that wait look 200 times a second.
                content = file.read(1).strip(b"\0") and b"{" + file.read().rstrip(b"\0")
            columns: dict[str, Any] | None = json.loads(content) if content else None
        except (OSError, ValueError):
            return None
        return columns

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)
