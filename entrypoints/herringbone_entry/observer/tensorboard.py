"""The scalars that a job's scripts write for TensorBoard, read from the event files as they grow."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from typing import IO

from herringbone_contract import safe_tree
from herringbone_contract.events.format import TENSORBOARD, Event, Point
from herringbone_entry.observer.event_files import DamagedError, EventParser
from herringbone_entry.observer.source import Source

_MARK = "tfevents"
# A search for new files may take a hundredth of the time; files that are known are read at each poll.
_SEARCH_SHARE = 0.01
# Entries that one search looks at: a script may write a million files.
_MAX_ENTRIES = 5000
_MAX_FILES = 200
# One poll must not take long, and the next ones read the rest: a scalar has about 90 bytes and takes 40 microseconds.
_MAX_POLL_BYTES = 1 << 18
# Clocks of processes of one machine are the same, so another time is a mistake.
_PAST_SECONDS, _FUTURE_SECONDS = 3600.0, 60.0


class TensorBoard(Source):
    """Reads the event files below some folders, without following links.

    >>> source = TensorBoard(["/opt/ml/output/data"], since=0.0)
    >>> source.poll(now=1.0)
    []

    Files that nobody has changed after `since`, in seconds since 1970, are of an earlier attempt of the job, and are
    not read. The metrics of the first folder with files are named by their tags; those of others have the folder's name
    in front (`RunNames`).
    """

    def __init__(self, folders: Sequence[str], since: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._folders, self._since, self._clock = list(folders), since, clock
        self._files: dict[str, _File] = {}
        self._names = RunNames()
        # By `clock`.
        self._next_search = 0.0

    def poll(self, now: float) -> list[Event | Point]:
        begin = self._clock()
        if begin >= self._next_search:
            self._open_new()
            end = self._clock()
            self._next_search = end + (end - begin) / _SEARCH_SHARE
        points: list[Event | Point] = []
        # A file that grows without end must not hide the others.
        limit = _MAX_POLL_BYTES // max(1, len(self._files))
        for path, file in self._files.items():
            try:
                scalars = file.parser.feed(file.read(limit))
            except DamagedError:
                # The descriptor is closed, and the path stays known: the file is not read again.
                file.close()
                continue
            run = os.path.dirname(path)  # noqa: PTH120 - the path is text
            for scalar in scalars:
                is_likely = now - _PAST_SECONDS <= scalar.time <= now + _FUTURE_SECONDS
                name = self._names.name(run, scalar.tag)
                points.append(
                    Point(scalar.time if is_likely else now, name, scalar.value, scalar.step, None, TENSORBOARD)
                )
        return points

    def last(self, now: float) -> list[Event | Point]:
        # Files that were made since the last search.
        self._next_search = 0.0
        return self.poll(now)

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def _open_new(self) -> None:
        # By time of creation, which the names of the files begin with.
        for path, base, inside in sorted(self._search(), key=lambda entry: (os.path.basename(entry[0]), entry[0])):  # noqa: PTH119
            if path in self._files or len(self._files) >= _MAX_FILES:
                continue
            # A file that has gone again, or a link in its place.
            with contextlib.suppress(OSError):
                self._files[path] = _File(safe_tree.open_file(base, inside))

    def _search(self) -> list[tuple[str, str, str]]:
        """Return path, folder and name below the folder of each event file."""
        paths: list[tuple[str, str, str]] = []
        for base in self._folders:
            # A folder that does not exist, or goes while it is read.
            with contextlib.suppress(OSError), safe_tree.folder(base) as top:
                for number, entry in enumerate(safe_tree.walk(top)):
                    if number >= _MAX_ENTRIES:
                        break
                    is_file = entry.kind == "file" and _MARK in entry.name.rpartition("/")[2]
                    if is_file and entry.state.st_mtime >= self._since:
                        paths.append((f"{base}/{entry.name}", base, entry.name))
        return paths


class RunNames:
    """Names the metrics of folders of event files ("runs" in TensorBoard). Pure.

    >>> names = RunNames()
    >>> names.name("/logs/train", "loss"), names.name("/logs/validation", "loss"), names.name("/logs/train/a", "loss")
    ('loss', 'validation/loss', 'a/loss')

    The first folder's metrics are named by their tags alone, so that a folder with a time in its name does not give
    each job other metrics. The others have their path in front, from the deepest folder shared with the first.
    """

    def __init__(self) -> None:
        self._first: str | None = None

    def name(self, folder: str, tag: str) -> str:
        """Return the name of the metric that a folder's files call `tag`."""
        if self._first is None:
            self._first = folder
        if folder == self._first:
            return tag
        shared = os.path.commonpath([folder, self._first])
        return f"{os.path.relpath(folder, shared)}/{tag}"


class _File:
    def __init__(self, file: IO[bytes]) -> None:
        self._file: IO[bytes] | None = file
        self.parser = EventParser()

    def read(self, limit: int) -> bytes:
        if self._file is None:
            return b""
        try:
            # Not `read` of the buffered file, which remembers the end of a file that still grows.
            return os.read(self._file.fileno(), limit)
        except OSError:
            return b""

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
