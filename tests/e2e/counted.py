"""The steps that a job's libraries have counted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def steps_by_rank(events: Iterable[dict[str, Any]]) -> dict[int, tuple[int, int]]:
    """Return, by rank, the number of steps and the number of their times; the first step has none."""
    counts: dict[int, tuple[int, int]] = {}
    for event in events:
        if event["kind"] == "steps":
            times = counts.get(event["rank"], (0, 0))[1] + len(event["seconds"])
            counts[event["rank"]] = event["count"], times
    return counts
