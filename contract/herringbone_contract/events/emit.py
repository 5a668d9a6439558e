"""Send events from a rank, or from any process that a rank started, to the supervisor of its host.

The supervisor's observer reads a FIFO whose path is in `HERRINGBONE_EVENTS`. A write of at most PIPE_BUF bytes is
atomic, so processes do not mix their lines, and none of them waits: what finds no room is dropped.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from herringbone_contract.constants import RankVariable

VARIABLE = RankVariable.EVENTS
RANK_VARIABLE = RankVariable.RANK
# POSIX's PIPE_BUF on Linux: a longer write could be mixed with another process's.
MAX_LINE_BYTES = 4096

_fifo: int | None = None
# The process that opened the FIFO, and its path.
_opened: tuple[int, str | None] = (0, None)


def _no_pace() -> tuple[int, int] | None:
    return None


# Returns the step of the optimizer that a loss of now belongs to, and the batches of a step; who knows both sets it.
pace: Callable[[], tuple[int, int] | None] = _no_pace


def emit(kind: str, **members: Any) -> bool:
    """Send one event, and return True; outside a job, or when the supervisor does not keep up, it is dropped.

    >>> emit("progress", done=10, total=100, unit="step", eta=None)
    False

    Never raises: a training must not fail for what somebody wants to look at.
    """
    fifo = descriptor()
    if fifo is None:
        return False
    # Imported here: most ranks send nothing, and all of them load this module.
    import json

    event = {"kind": kind, "t": time.time(), "rank": rank(), **members}
    try:
        line = json.dumps(event, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        return len(line) <= MAX_LINE_BYTES and os.write(fifo, line) > 0
    except (OSError, TypeError, ValueError, RecursionError):
        return False


def metric(name: str, value: float, step: int | None = None, *, source: str = "script") -> None:
    """Send one value of a metric.

    >>> metric("loss", 0.5, step=10)
    """
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return
    members: dict[str, Any] = {}
    if step is not None and (known := pace()) is not None:
        members["pace"] = (step - known[0], known[1])
    # JSON has no numbers that are not finite; readers turn the text back.
    shown = number if number - number == 0 else str(number)
    emit("metric", name=str(name), value=shown, step=step, source=source, **members)


def rank() -> int | None:
    """Return this process's rank, None outside a job."""
    text = os.environ.get(RANK_VARIABLE, "")
    return int(text) if text.isdigit() else None


def descriptor() -> int | None:
    """Return the descriptor of the FIFO, None where nobody listens; a forked child opens its own."""
    global _fifo, _opened
    path = os.environ.get(VARIABLE)
    if _opened == (os.getpid(), path):
        return _fifo
    _opened = os.getpid(), path
    try:
        # Without O_NONBLOCK the open would wait for a reader, and a write for room.
        _fifo = None if path is None else os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        _fifo = None
    return _fifo
