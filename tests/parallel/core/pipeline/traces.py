"""Reads the traces that `core.pipeline.trace` writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from herringbone_parallel.core.pipeline.trace import Event

_MICROSECONDS = 1e6


def read_trace(path: Path) -> list[Event]:
    """Return the events of a trace that `write_trace` wrote, in the order of the file; skip rows of other phases."""
    trace = json.loads(path.read_text(encoding="utf-8"))
    return [_event(row) for row in trace["traceEvents"] if row["ph"] == "X"]


def _event(row: dict[str, Any]) -> Event:
    start = row["ts"] / _MICROSECONDS
    end = start + row["dur"] / _MICROSECONDS
    return Event(row["pid"], row["cat"], row["args"]["microbatch"], start, end, row["args"]["step"])
