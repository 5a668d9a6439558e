"""A tracker in memory, for the export of a job of any backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from herringbone.plan.destinations import Destination
from herringbone.trackers.export import follow_job

if TYPE_CHECKING:
    from herringbone.api.job import TrainingJob


class MemoryTracker:
    """Keeps what it gets; see `herringbone.trackers.tracker.Tracker`."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}
        self.points: list[Any] = []
        self.tags: dict[str, str] = {}
        self.status = ""

    def begin(self, facts: Any, state: Any) -> None:
        self.state = {"address": f"memory:{facts.name}"}

    def log(self, points: Any) -> None:
        self.points += points

    def end(self, facts: Any) -> None:
        self.tags, self.status = facts.tags, facts.status

    def close(self) -> None:
        pass


def check_export(job: TrainingJob) -> None:
    """Raise `AssertionError` unless an exporter sends every value of a completed job's metrics, and the job's end."""
    tracker = MemoryTracker()
    destination = Destination("trackio", "", "all-sources")
    export = follow_job(job.name, job._backend, job.describe, destination, tracker=lambda *_: tracker)
    assert export.values == len(tracker.points)
    sent = sorted(str(point.value) for point in tracker.points if not point.name.startswith("step_seconds"))
    assert sent == sorted(str(metric.value) for metric in job.metrics())
    assert any(point.name.startswith("step_seconds") for point in tracker.points)
    assert (tracker.status, tracker.tags["herringbone.state"]) == ("Completed", "Completed")
    [shown] = job.describe()["Herringbone"]["Trackers"]
    assert (shown["To"], shown["State"], shown["Values"]) == (str(destination), "Done", export.values)
