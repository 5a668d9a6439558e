"""Events of a job that are worth a line while a caller waits for it. Pure: rows in, lines out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from herringbone.records.index import (
    FAILED,
    IN_PROGRESS,
    INTERRUPTED,
    LIMITS,
    POLICY_STOPPED,
    STOPPED,
    TERMINAL,
    TRAINING,
    JobRecord,
)
from herringbone_contract.errors import ContractError
from herringbone_contract.failure_text import parse_failure

# On this machine most states last a moment only. Shorter ones are not reported.
_REPORTED_AFTER_SECONDS = 5.0
# The colours of the words that `shown_state` returns.
STATE_STYLES = {
    **dict.fromkeys(("Completed",), "green"),
    **dict.fromkeys(("Failed",), "red"),
    **dict.fromkeys(("Stopped", "Stopping", "Timed out"), "yellow"),
    **dict.fromkeys(("InProgress", "Starting", "Downloading", "Training", "Uploading"), "cyan"),
}
_TIMED_OUT = (LIMITS["max_run"], "MaxWaitTimeExceeded")
_WHY_STOPPED = {
    LIMITS["max_run"]: "max_run was over",
    LIMITS["max_cost"]: "max_cost was spent",
    LIMITS["idle_timeout"]: "its devices were not used for idle_timeout",
    "MaxWaitTimeExceeded": "max_wait was over",
    POLICY_STOPPED: "fault_policies says so of a fault, which the log names",
    INTERRUPTED: "its hosts were taken away (spot, or preempted); it can go on from its checkpoints",
}


class StateEvents:
    """The changes of one job's state, each reported once: at once for a service, after a while for other backends.

    >>> events = StateEvents()
    >>> row = JobRecord(name="digits-1", backend="local", plan="{}", created=0.0)
    >>> events.of(row, now=7.0), events.of(row, now=12.0), events.of(row, now=13.0)
    ([], ['digits-1: Starting'], [])

    The end of a job is not an event; the caller reports it after the log.
    """

    def __init__(self) -> None:
        self._reported: list[tuple[str, str]] = []
        self._state = ""
        self._since = 0.0

    def of(self, record: JobRecord, *, now: float) -> list[str]:
        """Return a line for each new state; the first call returns only the latest of a service's states."""
        states = _described_states(record)
        if states:
            new = [state for state in states if state not in self._reported] if self._reported else states[-1:]
            self._reported += new
            return [f"{record.name}: {_shown(*state)}" for state in new if state[0] not in TERMINAL]
        state = record.secondary_status
        if state != self._state:
            self._state, self._since = state, now
        # The log itself shows that the job trains.
        if state in (TRAINING, *TERMINAL) or now - self._since < _REPORTED_AFTER_SECONDS:
            return []
        # Infinitely new: the state is never old enough to be reported a second time.
        self._since = float("inf")
        return [f"{record.name}: {state}"]


def listed(record: JobRecord, moment: Callable[[float], Any]) -> dict[str, Any]:
    """Return what ListTrainingJobs says about a job; `moment` writes a time, which is in seconds since 1970.

    >>> row = JobRecord(name="digits-1", backend="local", plan="{}", created=5.0)
    >>> listed(row, round)["CreationTime"], listed(row, round)["TrainingEndTime"]
    (5, None)
    """
    return {
        "TrainingJobName": record.name,
        "TrainingJobStatus": record.status,
        "SecondaryStatus": record.secondary_status,
        "CreationTime": moment(record.created),
        "TrainingEndTime": None if record.ended is None else moment(record.ended),
    }


def shown_state(record: JobRecord) -> str:
    """Return a job's state in one word, as lists of jobs show it.

    >>> shown_state(JobRecord(name="digits-1", backend="local", plan="{}", created=0.0, secondary_status="Training"))
    'Training'
    """
    if record.status == IN_PROGRESS:
        return record.secondary_status
    return "Timed out" if record.secondary_status in _TIMED_OUT else record.status


def why_stopped(record: JobRecord) -> str | None:
    """Return why a job stopped before its end; None when it did not."""
    if record.status != STOPPED:
        return None
    return f"job {record.name} stopped before its end: {_WHY_STOPPED.get(record.secondary_status, 'it was asked to')}"


def why_ended(record: JobRecord, failure: str | None) -> str:
    """Return in one line why a job did not complete; "" for all other jobs. `failure` is the record's, as JSON."""
    return why_of({"status": record.status, "secondary_status": record.secondary_status, "failure": failure})


def why_of(columns: Mapping[str, Any]) -> str:
    """Return the same for the columns of a row.

    >>> why_of({"status": "Stopped", "secondary_status": "MaxRuntimeExceeded"})
    'max_run was over'
    """
    if columns.get("status") == STOPPED:
        return _WHY_STOPPED.get(columns["secondary_status"], "asked to stop")
    failure = columns.get("failure")
    if columns.get("status") != FAILED or failure is None:
        return ""
    try:
        read = parse_failure(failure)
    except ContractError as error:
        return str(error)
    return f"{read.where}: {read.what}".partition("\n")[0]


def last_message(record: JobRecord) -> str:
    """Return what a cluster or a service says about the last state of a job; "" when it says nothing."""
    return (_described_states(record) or [("", "")])[-1][1]


def _described_states(record: JobRecord) -> list[tuple[str, str]]:
    if record.description is None:
        return []
    transitions = json.loads(record.description).get("SecondaryStatusTransitions") or ()
    return [(state["Status"], state.get("StatusMessage", "")) for state in transitions]


def _shown(status: str, message: str) -> str:
    return f"{status}: {message}" if message else status
