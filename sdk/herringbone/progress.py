"""What is worth saying of a job while one waits for it. Pure: rows in, lines out."""

from __future__ import annotations

import json

from herringbone.jobs import MAX_RUNTIME_EXCEEDED, STOPPED, TERMINAL, TRAINING, JobRecord

# On this machine most steps are over before anybody could read of them.
_WORTH_A_LINE_SECONDS = 1.0
_WHY_STOPPED = {
    MAX_RUNTIME_EXCEEDED: "max_run was over",
    "MaxWaitTimeExceeded": "max_wait was over",
    "Interrupted": "its spot hosts were taken away; it can go on from its checkpoints",
}


class Progress:
    """The steps of one job, each said once: a service's as it tells them, others when they last.

    >>> progress = Progress()
    >>> row = JobRecord(name="digits-1", backend="local", plan="{}", created=0.0)
    >>> progress.news(row, now=7.0), progress.news(row, now=8.0), progress.news(row, now=9.0)
    ([], ['digits-1: Starting'], [])

    How a job ends is left to what follows its log.
    """

    def __init__(self) -> None:
        self._told: list[tuple[str, str]] = []
        self._step = ""
        self._since = 0.0

    def news(self, record: JobRecord, *, now: float) -> list[str]:
        """Return a line for each step since the last look; at the first look, for a service's latest alone."""
        steps = _told_by_service(record)
        if steps:
            new = [step for step in steps if step not in self._told] if self._told else steps[-1:]
            self._told += new
            return [f"{record.name}: {_shown(*step)}" for step in new if step[0] not in TERMINAL]
        step = record.secondary_status
        if step != self._step:
            self._step, self._since = step, now
        # That it trains is what its log shows.
        if step in (TRAINING, *TERMINAL) or now - self._since < _WORTH_A_LINE_SECONDS:
            return []
        self._since = float("inf")
        return [f"{record.name}: {step}"]


def why_stopped(record: JobRecord) -> str | None:
    """Say why a job stopped before its end; None when it did not."""
    if record.status != STOPPED:
        return None
    return f"job {record.name} stopped before its end: {_WHY_STOPPED.get(record.secondary_status, 'it was asked to')}"


def _told_by_service(record: JobRecord) -> list[tuple[str, str]]:
    if record.description is None:
        return []
    told = json.loads(record.description).get("SecondaryStatusTransitions") or ()
    return [(step["Status"], step.get("StatusMessage", "")) for step in told]


def _shown(status: str, message: str) -> str:
    return f"{status}: {message}" if message else status
