"""Trackio: one run a job in Trackio's own folder on this machine, which `trackio show` shows.

`trackio.log` gives each row the time of the call, and a new id. The importers of Trackio write rows with their own
times by `SQLiteStorage.bulk_log`, and so does this. A row's id comes from its content, and Trackio stores an id once:
sending a batch twice changes nothing.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timezone
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trackio.sqlite_storage import SQLiteStorage

from herringbone.trackers.tracker import calls_of

if TYPE_CHECKING:
    from herringbone.plan.destinations import Destination
    from herringbone.trackers.facts import JobFacts
    from herringbone_contract.events.format import Point


class TrackioTracker:
    """See `Tracker`. The folder is that of TRACKIO_DIR."""

    def __init__(self, destination: Destination, folder: Path) -> None:  # noqa: ARG002 - Trackio has its own folder
        self._project = destination.project
        self._name = ""
        self.state: dict[str, Any] = {}

    def begin(self, facts: JobFacts, state: Mapping[str, Any]) -> None:
        self._name = facts.name
        self.state = {
            **state,
            "run": hashlib.sha256(f"{facts.name} {facts.created}".encode()).hexdigest()[:32],
            "address": f"trackio show --project {self._project}",
        }
        self._write_settings(facts, "begin", facts.created)

    def log(self, points: Sequence[Point]) -> None:
        rows: list[tuple[int, float, dict[str, float]]] = []
        for (step, time), row in groupby(points, lambda point: (point.step, point.time)):
            rows.append((step or 0, time, {point.name: point.value for point in row}))
        self._write(rows, [self._row_id(step, time, sorted(row)) for step, time, row in rows])

    def end(self, facts: JobFacts) -> None:
        self._write_settings(facts, "end", facts.created if facts.ended is None else facts.ended)

    def close(self) -> None:
        pass

    def _write_settings(self, facts: JobFacts, what: str, time: float) -> None:
        """Write a row for the sake of the run's settings, which come with rows."""
        # Trackio keeps names that begin with an underscore for itself.
        values = {name.lstrip("_") or "value": value for name, value in facts.values.items()}
        config = {**values, "herringbone": facts.own_tags, "_Created": _iso(facts.created)}
        self._write([(0, time, {})], [self._row_id(what, time, [])], config=config)

    def _write(self, rows: Sequence[tuple[int, float, dict[str, float]]], ids: list[str], **settings: Any) -> None:
        with _calls():
            SQLiteStorage.bulk_log(
                project=self._project,
                run=self._name,
                run_id=self.state["run"],
                metrics_list=[row for _, _, row in rows],
                steps=[step for step, _, _ in rows],
                timestamps=[_iso(time) for _, time, _ in rows],
                log_ids=ids,
                **settings,
            )

    def _row_id(self, *parts: object) -> str:
        return hashlib.sha256(json.dumps([self.state["run"], *parts]).encode()).hexdigest()[:32]


def _calls() -> AbstractContextManager[None]:
    # Another release of Trackio may lack `bulk_log`, or a parameter of it.
    return calls_of("Trackio", lambda error: isinstance(error, (OSError, sqlite3.OperationalError)))


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat()
