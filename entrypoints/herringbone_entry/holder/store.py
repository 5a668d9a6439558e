"""The files that a holder has: its host's own, and copies of another host's."""

from __future__ import annotations

import os
import threading
from typing import NamedTuple

from herringbone_contract.constants import CHECKPOINT_MANIFEST
from herringbone_contract.memory.link import HolderError, is_name, is_save, is_sealed

# A rank writes one file, and a second one for a second box of the same tensor.
_MAX_FILES = 4096


class Wanted(NamedTuple):
    """A save of this host that its neighbour has not got, with descriptors that the receiver closes."""

    save: str
    step: int
    files: dict[str, int]


class _Part:
    """One host's files of one save."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.files: dict[str, int] = {}
        self.is_copied = False

    @property
    def is_whole(self) -> bool:
        return CHECKPOINT_MANIFEST in self.files

    def close(self) -> None:
        for descriptor in self.files.values():
            os.close(descriptor)
        self.files.clear()


class Store:
    """Two saves of each host at most: the newest whole one, and one that is being written or is whole, too.

    Files are sealed memfds. All calls may come from several threads; descriptors that are returned are the caller's.
    """

    def __init__(self, host: str, limit: int) -> None:
        self._host, self._limit = host, limit
        # In the order of arrival: after a resume, steps begin again at a lower one.
        self._parts: dict[tuple[str, str], _Part] = {}
        self._bytes = 0
        self._changed = threading.Condition()

    def put(self, owner: str, save: object, step: object, name: object, descriptor: int) -> None:
        """Keep a file; the descriptor becomes the store's. Raises `HolderError` for what is refused."""
        try:
            size = _checked(save, step, name, descriptor)
            with self._changed:
                self._put((owner, str(save)), int(str(step)), str(name), descriptor, size)
                self._changed.notify_all()
        except HolderError:
            os.close(descriptor)
            raise

    def _put(self, key: tuple[str, str], step: int, name: str, descriptor: int, size: int) -> None:
        if key not in self._parts:
            self._make_room(key[0])
        part = self._parts.get(key) or _Part(step)
        if name in part.files:
            raise HolderError(f"{name} of this save is here already")
        if len(part.files) >= _MAX_FILES or self._bytes + size > self._limit:
            self._drop(key)
            raise HolderError(
                f"{size} bytes more do not fit: {self._bytes} of {self._limit} bytes for checkpoints in memory are used"
            )
        self._parts[key] = part
        part.files[name] = descriptor
        self._bytes += size

    def _make_room(self, owner: str) -> None:
        """Drop what a new save replaces: all of this owner but its newest whole save."""
        own = [key for key in self._parts if key[0] == owner]
        kept = next((key for key in reversed(own) if self._parts[key].is_whole), None)
        for key in own:
            if key != kept:
                self._drop(key)

    def _drop(self, key: tuple[str, str]) -> None:
        if (part := self._parts.pop(key, None)) is not None:
            self._bytes -= sum(os.fstat(descriptor).st_size for descriptor in part.files.values())
            part.close()

    def find(self, save: object, name: object) -> int | None:
        """Return a descriptor of a file, None where it is not here."""
        with self._changed:
            for (_, one), part in self._parts.items():
                if one == save and name in part.files:
                    return os.dup(part.files[str(name)])
        return None

    def listing(self) -> list[tuple[str, int, str]]:
        """Return the save, the step and the name of each file."""
        with self._changed:
            return [(save, part.step, name) for (_, save), part in self._parts.items() for name in part.files]

    def keep(self, save: str, mine: set[str]) -> list[str]:
        """Drop all other saves, count that one as not copied, and return which of `mine` are missing here."""
        with self._changed:
            for key in list(self._parts):
                if key[1] != save:
                    self._drop(key)
            for part in self._parts.values():
                part.is_copied = False
            own = self._parts.get((self._host, save))
            self._changed.notify_all()
            return sorted(mine - set(own.files if own is not None else ()))

    def is_copied(self) -> bool:
        """Report whether the neighbour has the newest whole save of this host."""
        with self._changed:
            own = [part for (owner, _), part in self._parts.items() if owner == self._host and part.is_whole]
            return not own or own[-1].is_copied

    def uncopied(self, seconds: float) -> Wanted | None:
        """Wait for a whole save of this host that is not copied; None after these seconds."""
        with self._changed:
            found = self._uncopied()
            if found is None:
                self._changed.wait(seconds)
                found = self._uncopied()
            return found

    def _uncopied(self) -> Wanted | None:
        for (owner, save), part in reversed(self._parts.items()):
            if owner == self._host and part.is_whole:
                if part.is_copied:
                    return None
                return Wanted(save, part.step, {name: os.dup(one) for name, one in part.files.items()})
        return None

    def copied(self, save: str) -> None:
        """Note that the neighbour has a save of this host."""
        with self._changed:
            if (part := self._parts.get((self._host, save))) is not None:
                part.is_copied = True

    def has(self, owner: str, save: str, name: str, size: int) -> bool:
        """Report whether a file of this size is here."""
        with self._changed:
            part = self._parts.get((owner, save))
            return part is not None and name in part.files and os.fstat(part.files[name]).st_size == size

    def takes(self, size: int) -> bool:
        """Report whether a file of this size could ever fit."""
        return 0 <= size <= self._limit


def _checked(save: object, step: object, name: object, descriptor: int) -> int:
    if not (is_save(save) and is_name(name) and type(step) is int and 0 <= step < 1 << 62):
        raise HolderError(f"no file of a save: {save!r}, step {step!r}, {name!r}"[:200])
    if not is_sealed(descriptor):
        raise HolderError(f"{name} is no sealed file in memory")
    return os.fstat(descriptor).st_size
