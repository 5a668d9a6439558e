"""What Slurm says of a job and what its controller wrote, in the words of the index. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from herringbone.jobs.index import (
    COMPLETED,
    FAILED,
    IN_PROGRESS,
    MAX_RUNTIME_EXCEEDED,
    PENDING,
    RESTARTING,
    STARTING,
    STOPPED,
    STOPPING,
    TERMINAL,
    JobRecord,
)
from herringbone_contract.failure import Failure, parse_failure

_BAR = "|"
_FIELDS = ("JobID", "State", "Reason", "RestartCnt", "NodeList", "WorkDir")
_SACCT_FIELDS = ("JobIDRaw", "State", "NodeList", "WorkDir")
SQUEUE = ("squeue", "--noheader", "--states=all", "--Format=" + ",".join(f"{name}:{_BAR}" for name in _FIELDS))
SACCT = ("sacct", "--noheader", "--parsable2", "--allocations", "--format=" + ",".join(_SACCT_FIELDS))
_WAITING = ("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT")
# How a job ends that its controller could not bring to an end.
_CUT = {
    "CANCELLED": (STOPPED, STOPPED, None),
    "TIMEOUT": (STOPPED, MAX_RUNTIME_EXCEEDED, None),
    "DEADLINE": (STOPPED, MAX_RUNTIME_EXCEEDED, None),
    "PREEMPTED": (STOPPED, "Interrupted", None),
    "NODE_FAIL": (FAILED, FAILED, "one of its nodes went down, and Slurm did not start it again"),
    "BOOT_FAIL": (FAILED, FAILED, "one of its nodes did not start"),
    "OUT_OF_MEMORY": (FAILED, FAILED, "out of memory: ask for more (slurm={'cpus': ..., 'memory': ...})"),
}
_ENDED = (*_CUT, "COMPLETED", "FAILED", "REVOKED")


class SlurmJob(NamedTuple):
    """One job as Slurm tells of it: its own word for the state, why it waits, and how often it began anew."""

    id: str
    state: str
    reason: str = ""
    restarts: int = 0
    nodes: str = ""
    folder: str = ""

    @property
    def over(self) -> bool:
        return self.state in _ENDED

    @property
    def waits(self) -> bool:
        return self.state in _WAITING


def parse_squeue(text: str) -> list[SlurmJob]:
    """Read what `SQUEUE` answers.

    >>> parse_squeue("4|PENDING|BeginTime|1||/home/me/jobs/a|\\n")
    [SlurmJob(id='4', state='PENDING', reason='BeginTime', restarts=1, nodes='', folder='/home/me/jobs/a')]
    """
    found = []
    for line in text.splitlines():
        job, state, reason, restarts, nodes, folder = line.rstrip(_BAR).split(_BAR, len(_FIELDS) - 1)
        found.append(SlurmJob(job.strip(), state, reason, int(restarts or 0), nodes, folder))
    return found


def parse_sacct(text: str) -> list[SlurmJob]:
    """Read what `SACCT` answers: jobs that squeue has forgotten.

    >>> parse_sacct("4|CANCELLED by 1000|n[1-2]|/home/me/jobs/a\\n")[0].state
    'CANCELLED'
    """
    found = []
    for line in text.splitlines():
        job, state, nodes, folder = line.split(_BAR, len(_SACCT_FIELDS) - 1)
        found.append(SlurmJob(job, state.split()[0], nodes=nodes, folder=folder))
    return found


def sure(report: Mapping[str, Any], *, asked: bool) -> bool:
    """Say whether the controller's word is the last one, whatever Slurm will do.

    A stop that nobody here asked for came from Slurm, and a lost host is Slurm's to notice: it may start the job again.
    """
    status = report.get("status")
    if status == STOPPED:
        return asked or report.get("secondary_status") == MAX_RUNTIME_EXCEEDED
    if status == FAILED:
        return parse_failure(report["failure"]).lost_host is None
    return status == COMPLETED


def columns_of(
    report: Mapping[str, Any], job: SlurmJob | None, record: JobRecord, *, asked: bool, last_words: str, now: float
) -> dict[str, Any]:
    """Return what the index should say of a job; None for `job` when Slurm knows it no more.

    `report` is the controller's, `asked` whether a stop was asked for here, `last_words` what the batch script said.
    """
    if sure(report, asked=asked):
        return _kept(report, record)
    if job is None or job.over:
        if report.get("status") in TERMINAL and (job is None or job.state not in _CUT):
            return _kept(report, record)
        return _cut_short(report, job, asked=asked, last_words=last_words, now=now)
    current = {} if job.waits or report.get("attempt") != job.restarts else report
    if asked or current.get("status"):
        secondary = STOPPING
    elif job.restarts and not current:
        secondary = RESTARTING
    else:
        secondary = PENDING if job.waits else current.get("secondary_status", STARTING)
    started = {"started": current["started"]} if "started" in current else {}
    return {
        **started,
        "status": STOPPING if asked else IN_PROGRESS,
        "secondary_status": secondary,
        "description": _described(record, secondary, _message(job)),
    }


def _kept(report: Mapping[str, Any], record: JobRecord) -> dict[str, Any]:
    names = ("status", "secondary_status", "started", "ended", "failure", "model")
    said = {name: report[name] for name in names if name in report}
    return {**said, "description": _described(record, said["secondary_status"], "")}


def _cut_short(
    report: Mapping[str, Any], job: SlurmJob | None, *, asked: bool, last_words: str, now: float
) -> dict[str, Any]:
    """Return how a job ended whose controller has not said."""
    started = {"started": report["started"]} if "started" in report else {}
    if asked:
        status, secondary, why = STOPPED, STOPPED, None
    elif job is None:
        status, secondary, why = FAILED, FAILED, "Slurm knows the job no more, and it left no word of its end"
    else:
        unsaid = (
            f"Slurm job {job.id} ended ({job.state}) before it could say how; do its nodes see its folder? {last_words}"
        )
        status, secondary, why = _CUT.get(job.state, (FAILED, FAILED, unsaid.strip()))
    failure = None if why is None else Failure(exit_code=0, message=why).to_json()
    return {**started, "status": status, "secondary_status": secondary, "ended": now, "failure": failure}


def _message(job: SlurmJob) -> str:
    again = f", attempt {job.restarts + 1}" if job.restarts else ""
    if job.waits:
        why = f" ({job.reason})" if job.reason not in ("", "None", "(null)") else ""
        return f"Slurm job {job.id} waits{why}{again}"
    return f"Slurm job {job.id} on {job.nodes or 'its nodes'}{again}"


def _described(record: JobRecord, secondary: str, message: str) -> str:
    """Add a state to those that were told, under the names that SageMaker gives them."""
    told = [] if record.description is None else json.loads(record.description)["SecondaryStatusTransitions"]
    new = {"Status": secondary, "StatusMessage": message}
    if secondary not in (COMPLETED, FAILED, STOPPED) and (not told or told[-1] != new):
        told = [*told, new]
    return json.dumps({"SecondaryStatusTransitions": told})
