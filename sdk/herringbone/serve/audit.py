"""The audit: a line of JSON for each call, with who called what, and how it ended. It has no bodies and no secrets.

Whoever reaches the port can send calls without a right signature, as many as the network takes. Of those, the audit has
a line a second and a number of others, so that nobody fills the disk or hides their calls among such lines.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from herringbone.serve.limits import Rate

# The previous file stays next to it, so the audit takes twice this at most.
_MAX_BYTES = 64 << 20
_UNSIGNED_PER_SECOND, _UNSIGNED_AT_ONCE = 1.0, 100.0


class Audit:
    """Appends to the file at `path`, which only this user can read.

    >>> Audit(Path("audit.log")).add(key="ada", operation="CreateTrainingJob", status=200)     # doctest: +SKIP
    """

    def __init__(self, path: Path, *, max_bytes: int = _MAX_BYTES, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._clock = clock
        self._unsigned = Rate(per_second=_UNSIGNED_PER_SECOND, burst=_UNSIGNED_AT_ONCE)
        # Calls without a line, since the last line. Guarded by the lock, as the file is.
        self._unwritten = 0

    def add(self, **members: str | float | int | None) -> None:
        """Write one line. Raises `OSError`: a call that cannot be written down is not answered.

        A call without `key` was not signed rightly. If there are too many, they have no lines: the next line says by
        `unwritten` how many there were.
        """
        known = {name: value for name, value in members.items() if value not in (None, "")}
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        with self._lock:
            if not known.get("key") and not self._unsigned.take(self._clock()):
                self._unwritten += 1
                return
            if self._unwritten:
                known["unwritten"] = self._unwritten
            line = msgspec.json.encode({"time": stamp, **known}) + b"\n"
            # One write with O_APPEND: a line is there whole or not at all, also where the service is killed.
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                os.write(file, line)
                self._unwritten = 0
                size = os.fstat(file).st_size
            finally:
                os.close(file)
            if size > self._max_bytes:
                self._path.replace(self._path.with_suffix(".1.log"))
