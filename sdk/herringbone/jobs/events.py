"""What is worth saying of a job while one waits for it. Pure: rows in, lines out."""

from __future__ import annotations

import json

from herringbone.jobs.index import MAX_RUNTIME_EXCEEDED, STOPPED, TERMINAL, TRAINING, JobRecord

# On this machine most states are over before anybody wonders.
_WORTH_A_LINE_SECONDS = 5.0
_WHY_STOPPED = {
    MAX_RUNTIME_EXCEEDED: "max_run was over",
    "MaxWaitTimeExceeded": "max_wait was over",
    "Interrupted": "its spot hosts were taken away; it can go on from its checkpoints",
}


class News:
    """The states of one job, each said once: a service's as it tells them, others when they last.

    >>> news = News()
    >>> row = JobRecord(name="digits-1", backend="local", plan="{}", created=0.0)
    >>> news.of(row, now=7.0), news.of(row, now=12.0), news.of(row, now=13.0)
    ([], ['digits-1: Starting'], [])

    How a job ends is left to what follows its log.
    """

    def __init__(self) -> None:
        self._told: list[tuple[str, str]] = []
        self._state = ""
        self._since = 0.0

    def of(self, record: JobRecord, *, now: float) -> list[str]:
        """Return a line for each state since the last look; at the first look, for a service's latest alone."""
        states = _told_by_service(record)
        if states:
            new = [state for state in states if state not in self._told] if self._told else states[-1:]
            self._told += new
            return [f"{record.name}: {_shown(*state)}" for state in new if state[0] not in TERMINAL]
        state = record.secondary_status
        if state != self._state:
            self._state, self._since = state, now
        # That it trains is what its log shows.
        if state in (TRAINING, *TERMINAL) or now - self._since < _WORTH_A_LINE_SECONDS:
            return []
        self._since = float("inf")
        return [f"{record.name}: {state}"]


def why_stopped(record: JobRecord) -> str | None:
    """Say why a job stopped before its end; None when it did not."""
    if record.status != STOPPED:
        return None
    return f"job {record.name} stopped before its end: {_WHY_STOPPED.get(record.secondary_status, 'it was asked to')}"


def _told_by_service(record: JobRecord) -> list[tuple[str, str]]:
    if record.description is None:
        return []
    told = json.loads(record.description).get("SecondaryStatusTransitions") or ()
    return [(state["Status"], state.get("StatusMessage", "")) for state in told]


def _shown(status: str, message: str) -> str:
    return f"{status}: {message}" if message else status
