"""The audit: a line of JSON for each call, with who called what, and how it ended. It has no bodies and no secrets."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import msgspec

# The previous file stays next to it, so the audit takes twice this at most.
_MAX_BYTES = 64 << 20


class Audit:
    """Appends to the file at `path`, which only this user can read.

    >>> Audit(Path("audit.log")).add(key="ada", operation="CreateTrainingJob", status=200)     # doctest: +SKIP
    """

    def __init__(self, path: Path, *, max_bytes: int = _MAX_BYTES) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._lock = threading.Lock()

    def add(self, **members: str | float | int | None) -> None:
        """Write one line. Raises `OSError`: a call that cannot be written down is not answered."""
        known = {name: value for name, value in members.items() if value not in (None, "")}
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line = msgspec.json.encode({"time": stamp, **known}) + b"\n"
        with self._lock:
            # One write with O_APPEND: a line is there whole or not at all, also where the service is killed.
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                os.write(file, line)
                size = os.fstat(file).st_size
            finally:
                os.close(file)
            if size > self._max_bytes:
                self._path.replace(self._path.with_suffix(".1.log"))
