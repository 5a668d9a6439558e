"""The lock of a machine: one job of Herringbone has the machine at a time.

    agent of the submitting connection -- hand_over() --> the job's controller

The lock is a file that names its holder, a process, and the place where the holder's id means something: machine, boot
and PID namespace. The lock is held while that process lives. A holder that was killed, or that ended with its machine,
needs to release nothing: its lock counts as free. Machines must not share a work folder. If they do, neither can see
the other's holder, and a holder that cannot be seen keeps the lock.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from herringbone.processes import may_live, place, sees


class MachineLock:
    """The lock of one work folder; `alive` reports whether a holder may still run, from its id and its place.

    >>> lock = MachineLock(Path("work/lock"))                                          # doctest: +SKIP
    >>> lock.acquire({"job": "digits-1", "client": "me@laptop"}, holder="4711@8")       # doctest: +SKIP

    A holder is a pid and a start time, so a pid that the kernel gives to a new process does not keep the lock. `here`
    is the place of the processes that use this object, as `processes.place` writes it.
    """

    def __init__(
        self, path: Path, *, alive: Callable[[str, str | None], bool] = may_live, here: str | None = None
    ) -> None:
        self._path = path
        self._alive = alive
        self._here = place() if here is None else here

    def acquire(self, claim: dict[str, str], *, holder: str) -> dict[str, Any] | None:
        """Acquire the lock and return None, or return the claim of the present owner."""
        with self._open() as file:
            owner = self._read(file)
            # The same holder may ask again: a retry of the client's request must not fail on its own lock.
            if owner is not None and not self._is(owner, holder):
                return owner
            _write(file, {**claim, "holder": holder, "place": self._here})
        return None

    def hand_over(self, holder: str, to: str) -> None:
        """Make the process `to` the holder, if `holder` has the lock."""
        # One write under flock: at no moment is the machine free between the agent and the controller.
        with self._open() as file:
            owner = self._read(file)
            if owner is not None and self._is(owner, holder):
                _write(file, {**owner, "holder": to})

    def release(self, holder: str) -> None:
        """Free the lock, if `holder` has it."""
        with self._open() as file:
            owner = self._read(file)
            if owner is not None and self._is(owner, holder):
                # Emptied, not removed: another process may wait in flock on this very file.
                file.truncate(0)

    def owner(self) -> dict[str, Any] | None:
        """Return the claim of the present owner; None when the lock is free."""
        with self._open() as file:
            return self._read(file)

    def unseen(self, owner: dict[str, Any]) -> str | None:
        """Return what to do about an owner whose process cannot be seen from here; None when it can be seen."""
        where = owner.get("place")
        if where is None or sees(where, self._here) is not None:
            return None
        return (
            f"on {where.partition(' ')[0]}, another machine or container, which must not share the work folder "
            f"{self._path.parent}: give each machine its own `work_folder`; or remove {self._path} there if that "
            "machine is gone"
        )

    def _is(self, owner: dict[str, Any], holder: str) -> bool:
        # Another machine may have given a process of its own the same pid and start time.
        return owner["holder"] == holder and owner.get("place") in (None, self._here)

    @contextmanager
    def _open(self) -> Iterator[IO[str]]:
        # "a+" creates a missing file and never truncates an existing one before flock is held.
        with self._path.open("a+") as file:
            # flock guards one read and write only. The kernel drops it when this file is closed, also by a kill.
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file

    def _read(self, file: IO[str]) -> dict[str, Any] | None:
        file.seek(0)
        try:
            owner: dict[str, Any] = json.loads(file.read())
            return owner if self._alive(owner["holder"], owner.get("place")) else None
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            return None  # empty, or half written by a process that was killed while it wrote


def _write(file: IO[str], content: dict[str, Any]) -> None:
    # Mode "a+" writes at the end of the file, which is its start once the file is empty.
    file.truncate(0)
    file.write(json.dumps(content))
