"""The lock of a work folder: one job of this user has the machine, or several have parts of it.

    agent of the submitting connection -- hand_over() --> the job's controller

The lock is a file that names its holder, a process, and the place where the holder's id means something: machine, boot
and PID namespace. The lock is held while that process lives. A holder that was killed, or that ended with its machine,
needs to release nothing: its lock counts as free. Jobs that have parts of the machine share the lock; the line of the
machine (`herringbone.slots`) says which parts. Machines must not share a work folder. If they do, neither can see the
other's holder, and a holder that cannot be seen keeps the lock.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import Any

from herringbone.system.processes import may_live, place, sees
from herringbone_contract.files import locked


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

    def acquire(self, claim: dict[str, str], *, holder: str, shared: bool = False) -> dict[str, Any] | None:
        """Acquire the lock and return None, or return the claim of a present owner.

        Several owners that are `shared` may have the lock at a time.
        """
        with locked(self._path) as file:
            # The same holder may ask again: a retry of the client's request must not fail on its own lock.
            others = self._without(holder, self._read(file))
            if (blocker := self._blocker(others, shared=shared)) is not None:
                return blocker
            sharing = {"shared": True} if shared else {}
            _write(file, [*others, {**claim, "holder": holder, "place": self._here, **sharing}])
        return None

    def blocker(self, *, holder: str, shared: bool = False) -> dict[str, Any] | None:
        """Return the owner for whom `acquire` would be refused; None without one."""
        with locked(self._path) as file:
            return self._blocker(self._without(holder, self._read(file)), shared=shared)

    def hand_over(self, holder: str, to: str) -> None:
        """Make the process `to` the holder, if `holder` has the lock."""
        # One write under the lock: at no moment is the machine free between the agent and the controller.
        with locked(self._path) as file:
            owners = self._read(file)
            _write(file, [{**owner, "holder": to} if self._is(owner, holder) else owner for owner in owners])

    def release(self, holder: str) -> None:
        """Free the lock, if `holder` has it."""
        with locked(self._path) as file:
            # Emptied, not removed: another process may wait for the lock of this very file.
            _write(file, self._without(holder, self._read(file)))

    def owner(self) -> dict[str, Any] | None:
        """Return the claim of the present owner, of several the first; None when the lock is free."""
        with locked(self._path) as file:
            return next(iter(self._read(file)), None)

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

    def _blocker(self, others: list[dict[str, Any]], *, shared: bool) -> dict[str, Any] | None:
        for owner in others:
            if not (shared and owner.get("shared")) or self.unseen(owner) is not None:
                return owner
        return None

    def _without(self, holder: str, owners: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [owner for owner in owners if not self._is(owner, holder)]

    def _read(self, file: FileIO) -> list[dict[str, Any]]:
        file.seek(0)
        try:
            content = json.loads(file.read())
            owners: list[dict[str, Any]] = content if isinstance(content, list) else [content]
            return [owner for owner in owners if self._alive(owner["holder"], owner.get("place"))]
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            return []  # empty, or half written by a process that was killed while it wrote


def _write(file: FileIO, owners: list[dict[str, Any]]) -> None:
    # In place, because the lock is that of this file. What is written goes to its end, its start once it is empty.
    file.truncate(0)
    if owners:
        # One owner is written as earlier releases do, which see by it that the machine is not free.
        file.write(json.dumps(owners[0] if len(owners) == 1 else owners).encode())
