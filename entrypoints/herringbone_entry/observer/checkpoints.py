"""Checkpoints: a new or replaced entry of the checkpoint folder is an event."""

from __future__ import annotations

import math
import os
import stat
import time
from collections.abc import Callable

from herringbone_contract.events.format import Event, Point
from herringbone_entry.observer.source import Source

_LOOK_SECONDS = 5.0
# Entries of the folder, and files below one entry; a script may make any number.
_MAX_ENTRIES = 1000
_MAX_FILES = 2000
_MAX_NAME_CHARS = 256

# The inode and the time of the last change: a replaced file has another inode, a rewritten one another time.
Mark = tuple[int, int]


class Checkpoints(Source):
    """Looks at a folder every 5 seconds; entries from before `since`, the start of the ranks, are no news.

    An entry is reported when it has not changed between two looks: one that is still written is no checkpoint yet.
    """

    def __init__(
        self,
        folder: str,
        clock: Callable[[], float] = time.monotonic,
        max_entries: int = _MAX_ENTRIES,
        since: float = math.inf,
    ) -> None:
        self._folder, self._clock, self._max_entries = folder, clock, max_entries
        self._known = {name: mark for name, mark in self._look().items() if mark[1] < since * 1e9}
        # Seen at the last look, and not yet reported.
        self._fresh: dict[str, Mark] = {}
        # Reported by the last look.
        self._reported: list[str] = []
        self._look_at = clock() + _LOOK_SECONDS

    def poll(self, now: float) -> list[Event | Point]:
        if self._clock() < self._look_at:
            return []
        self._look_at = self._clock() + _LOOK_SECONDS
        return self._news(now, ended=False)

    def last(self, now: float) -> list[Event | Point]:
        # Nobody writes any more.
        return self._news(now, ended=True)

    def _news(self, now: float, *, ended: bool) -> list[Event | Point]:
        marks = self._look()
        settled = {name for name, mark in marks.items() if ended or self._fresh.get(name) == mark}
        self._fresh = {name: mark for name, mark in marks.items() if self._known.get(name) != mark}
        events: list[Event | Point] = []
        self._reported = sorted(settled & self._fresh.keys())
        for name in self._reported:
            self._known[name] = self._fresh.pop(name)
            events.append(
                {
                    "kind": "checkpoint",
                    "t": min(now, marks[name][1] / 1e9),
                    "path": name[:_MAX_NAME_CHARS],
                    "bytes": tree_bytes(os.path.join(self._folder, name)),  # noqa: PTH118 - the name may be any bytes
                }
            )
        self._known = {name: mark for name, mark in self._known.items() if name in marks}
        return events

    def _look(self) -> dict[str, Mark]:
        """Return the mark of each entry: of a folder the newest of its own and its entries'."""
        marks: dict[str, Mark] = {}
        try:
            with os.scandir(self._folder) as entries:
                for entry in entries:
                    if len(marks) >= self._max_entries:
                        break
                    mark = _mark(entry)
                    # Names that begin with a dot are those of files that are still written.
                    if mark is not None and not entry.name.startswith("."):
                        marks[entry.name] = mark
        except OSError:
            # No folder, or not ours to read.
            return marks
        return marks


def _mark(entry: os.DirEntry[str]) -> Mark | None:
    try:
        # Never through a link, which may lead to anything.
        status = entry.stat(follow_symlinks=False)
        if stat.S_ISREG(status.st_mode):
            return status.st_ino, status.st_mtime_ns
        if not stat.S_ISDIR(status.st_mode):
            return None
        newest = status.st_mtime_ns
        with os.scandir(entry.path) as members:
            for count, member in enumerate(members):
                if count >= _MAX_ENTRIES:
                    break
                newest = max(newest, member.stat(follow_symlinks=False).st_mtime_ns)
        return status.st_ino, newest
    except OSError:
        return None


def tree_bytes(path: str, max_files: int = _MAX_FILES) -> int | None:
    """Return the bytes of a file, or of the files below a folder; None beyond some thousand files.

    Links count as nothing.
    """
    total, files, waiting = 0, 0, [path]
    while waiting:
        place = waiting.pop()
        try:
            status = os.lstat(place)
            if stat.S_ISREG(status.st_mode):
                total += status.st_size
            elif stat.S_ISDIR(status.st_mode):
                with os.scandir(place) as entries:
                    for entry in entries:
                        files += 1
                        if files > max_files:
                            return None
                        waiting.append(entry.path)
        except OSError:
            continue
    return total
