"""Write the events about a whole job: `logs/job.events` in its folder.

A job's controller writes them. On `ssh:` no machine knows the whole job, and the process that follows the job does.
One process at a time writes the file, which may be on NFS.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from herringbone_contract.events.format import Event, encode, parse
from herringbone_contract.masking import printable

# Enough to hold the last few events.
_TAIL_BYTES = 16_384
_WHY_CHARS = 1_000
# The state in which a job gets its hosts, and the one that leaves them to it.
_HELD, _STOPPING = "Training", "Stopping"


class JobEvents:
    """Appends to the file at `path`; a full disk loses events, and the job goes on.

    >>> JobEvents("job.events").state("Training")                    # doctest: +SKIP
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path

    def state(self, state: str, why: str = "", *, at: float | None = None) -> None:
        """Write a change of the job's secondary status; a state that is the last one already is not written again.

        `at` is the time of the change, None for now.
        """
        if state != self.last_state():
            self._add("state", state=state, why=_one_line(why), **({} if at is None else {"t": at}))

    def restart(self, attempt: int, why: str, machines: Sequence[str]) -> None:
        """Write that attempt number `attempt` begins, without the excluded `machines`."""
        self._add("restart", attempt=attempt, why=_one_line(why), machines=list(machines))

    def bill(self, text: str) -> None:
        """Write what the job has cost."""
        self._add("bill", text=_one_line(text))

    def _add(self, kind: str, **members: Any) -> None:
        event: Event = {"kind": kind, "t": time.time(), **members}
        with suppress(ValueError):
            append_lines(self._path, encode(event))

    def last_state(self) -> str | None:
        """Return the state that was written last, by any process; None before the first one."""
        try:
            file = os.open(self._path, os.O_RDONLY)
        except OSError:
            return None
        try:
            tail = os.pread(file, _TAIL_BYTES, max(0, os.fstat(file).st_size - _TAIL_BYTES))
        except OSError:
            return None
        finally:
            os.close(file)
        events = (event for line in reversed(tail.split(b"\n")) if (event := parse(line)) is not None)
        return next((event.get("state") for event in events if event["kind"] == "state"), None)


class Held:
    """Counts the seconds in which a job holds its hosts, by its states; not the time between two attempts. Pure.

    >>> held = Held()
    >>> for state, t in (("Training", 10.0), ("Restarting", 30.0), ("Training", 90.0)): held.take(state, t)
    >>> held.seconds(95.0), held.seconds(None)
    (25.0, 20.0)
    """

    def __init__(self) -> None:
        self._past = 0.0
        self._since: float | None = None

    def take(self, state: object, t: float) -> None:
        """Take the next state of the job, and the time of the change."""
        if state == _HELD:
            self._since = t if self._since is None else self._since
        elif self._since is not None and state != _STOPPING:
            self._past, self._since = self._past + max(0.0, t - self._since), None

    def seconds(self, now: float | None) -> float:
        """Return the seconds until `now`; None leaves out an attempt whose end is not known."""
        return self._past + (0.0 if now is None or self._since is None else max(0.0, now - self._since))


def held_seconds(path: str | os.PathLike[str], now: float | None = None) -> float:
    """Return how long a job has held its hosts, by its file of events; see `Held.seconds`."""
    held = Held()
    with suppress(OSError), open(path, "rb") as file:  # noqa: PTH123 - as in `append_lines`
        for line in file:
            if (event := parse(line)) is not None and event["kind"] == "state":
                held.take(event.get("state"), float(event["t"]))
    return held.seconds(now)


def append_lines(path: str | os.PathLike[str], lines: bytes) -> None:
    """Append whole lines to a file of events; a full disk loses them."""
    with suppress(OSError):
        # No pathlib: controllers start without it. O_APPEND: those of several attempts write one after the other.
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            size = os.fstat(file).st_size
            # The disk may have been full, or the machine have crashed, in the middle of the last line.
            is_cut = size > 0 and os.pread(file, 1, size - 1) != b"\n"
            os.write(file, b"\n" + lines if is_cut else lines)
        finally:
            os.close(file)


def _one_line(text: str) -> str:
    return printable(text.partition("\n")[0])[:_WHY_CHARS]
