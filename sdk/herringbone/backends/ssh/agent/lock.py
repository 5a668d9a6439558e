"""Whose a machine is: one job of ours at a time.

The lock is a file that names its holder, a process of that machine: first the desk of the visit that prepares the job,
then the job's controller. It is held as long as that process lives: nothing has to be given back, and a lock whose
holder was killed, or went with its machine, is none.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from herringbone.processes import is_alive


class MachineLock:
    """The lock of one work folder.

    >>> lock = MachineLock(Path("work/lock"))                                       # doctest: +SKIP
    >>> lock.take({"job": "digits-1", "client": "me@laptop"}, holder="4711@8")       # doctest: +SKIP
    """

    def __init__(self, path: Path, *, alive: Callable[[str], bool] = is_alive) -> None:
        self._path = path
        self._alive = alive

    def take(self, claim: dict[str, str], *, holder: str) -> dict[str, Any] | None:
        """Take the lock and return None, or return who has it: the claim that was given when it was taken."""
        with self._open() as file:
            found = self._read(file)
            if found is not None and found["holder"] != holder:
                return found
            _write(file, {**claim, "holder": holder})
        return None

    def hand_over(self, holder: str, to: str) -> None:
        """Give the lock to another process, if `holder` has it."""
        with self._open() as file:
            found = self._read(file)
            if found is not None and found["holder"] == holder:
                _write(file, {**found, "holder": to})

    def give_back(self, holder: str) -> None:
        """Let go of the lock, if `holder` has it."""
        with self._open() as file:
            found = self._read(file)
            if found is not None and found["holder"] == holder:
                file.truncate(0)

    def held_by(self) -> dict[str, Any] | None:
        """Return the claim of who has it, None when it is free."""
        with self._open() as file:
            return self._read(file)

    @contextmanager
    def _open(self) -> Iterator[IO[str]]:
        with self._path.open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file

    def _read(self, file: IO[str]) -> dict[str, Any] | None:
        file.seek(0)
        try:
            found: dict[str, Any] = json.loads(file.read())
            return found if self._alive(found["holder"]) else None
        except (ValueError, KeyError, TypeError, AttributeError):
            return None  # empty, or half written by one who was killed


def _write(file: IO[str], content: dict[str, Any]) -> None:
    file.truncate(0)
    file.write(json.dumps(content))
    file.flush()
