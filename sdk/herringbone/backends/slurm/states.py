"""The state of a job in the words of the index, from Slurm's state and the controller's report. Pure.

A controller's report counts only for the attempt whose number it has.

    report                   Slurm's job                  the row comes from
    final                    any                          the report
    any                      over, cut short by Slurm     Slurm's state
    with an end              over in another way          the report
    of this attempt          runs                         the report
    none, or an earlier one  waits or runs                Slurm's state: Pending, Starting or Restarting
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from herringbone.controller.slurm_steps import OUT_OF_MEMORY
from herringbone.records.index import (
    COMPLETED,
    FAILED,
    IN_PROGRESS,
    INTERRUPTED,
    LIMITS,
    MAX_RUNTIME_EXCEEDED,
    PENDING,
    RESTARTING,
    STARTING,
    STOPPED,
    STOPPING,
    TERMINAL,
    JobRecord,
)
from herringbone_contract.errors import SlurmError
from herringbone_contract.failure import Failure
from herringbone_contract.failure_text import parse_failure

_BAR = "|"
_ANSWER = re.compile(r"(\d+)(?:;\S+)?")
_FIELDS = ("JobID", "State", "Reason", "RestartCnt", "NodeList", "WorkDir")
_SACCT_FIELDS = ("JobIDRaw", "State", "NodeList", "WorkDir")
SQUEUE = ("squeue", "--noheader", "--states=all", "--Format=" + ",".join(f"{name}:{_BAR}" for name in _FIELDS))
SACCT = ("sacct", "--noheader", "--parsable2", "--allocations", "--format=" + ",".join(_SACCT_FIELDS))
# Clocks of machines that share a folder differ by seconds.
_MISSED_BEATS = 9
_SILENCE = (
    "its controller gives no sign of life: somebody has stopped it, or its node is lost; `scontrol show job {0}` shows "
    "the node, `scancel {0}` ends the job"
)
_WAITING = ("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT")
# The end of a job whose controller Slurm ended.
_ENDED_BY_SLURM = {
    "CANCELLED": (STOPPED, STOPPED, None),
    "TIMEOUT": (STOPPED, MAX_RUNTIME_EXCEEDED, None),
    "DEADLINE": (STOPPED, MAX_RUNTIME_EXCEEDED, None),
    "PREEMPTED": (STOPPED, INTERRUPTED, None),
    "NODE_FAIL": (FAILED, FAILED, "one of its nodes went down, and Slurm did not restart the job"),
    "BOOT_FAIL": (FAILED, FAILED, "one of its nodes did not start"),
    "OUT_OF_MEMORY": (FAILED, FAILED, OUT_OF_MEMORY),
}
_ENDED = (*_ENDED_BY_SLURM, "COMPLETED", "FAILED", "REVOKED")


class SlurmJob(NamedTuple):
    """One job in Slurm's words: its state, the reason for waiting, and the number of restarts."""

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


def rows_of(text: str) -> list[str]:
    """Return the lines that a command of Slurm wrote, without the words of a site's wrapper or of login files.

    >>> rows_of("Welcome to cluster 3\\n4|RUNNING|n1|/home\\n")
    ['4|RUNNING|n1|/home']
    """
    return [line for line in text.splitlines() if _BAR in line]


def job_id(answer: str) -> str:
    """Return the id that sbatch answers with. Raises `SlurmError` for an answer without one.

    >>> job_id("Welcome to cluster 3\\n123;cluster\\n")
    '123'

    With several clusters, the answer names the cluster as well.
    """
    matches = [match for line in answer.splitlines() if (match := _ANSWER.fullmatch(line.strip())) is not None]
    if not matches:
        raise SlurmError(
            f"sbatch answers without a job's id: {answer.strip()[-200:]!r}; the job was taken out of the queue again. "
            "Look at a wrapper of sbatch: with --parsable it must pass on the line with the id"
        )
    return matches[-1][1]


def parse_squeue(text: str) -> list[SlurmJob]:
    """Parse the output of `SQUEUE`.

    >>> parse_squeue("4|PENDING|BeginTime|1||/home/me/jobs/a|\\n")
    [SlurmJob(id='4', state='PENDING', reason='BeginTime', restarts=1, nodes='', folder='/home/me/jobs/a')]
    """
    jobs = []
    for line in rows_of(text):
        try:
            job, state, reason, restarts, nodes, folder = line.rstrip(_BAR).split(_BAR, len(_FIELDS) - 1)
            jobs.append(SlurmJob(job.strip(), state, reason, int(restarts or 0), nodes, folder))
        except ValueError:
            raise SlurmError(f"squeue answers with a line of another form: {line[:200]!r}") from None
    return jobs


def parse_sacct(text: str) -> list[SlurmJob]:
    """Parse the output of `SACCT`, which also has jobs that squeue no longer lists.

    >>> parse_sacct("4|CANCELLED by 1000|n[1-2]|/home/me/jobs/a\\n")[0].state
    'CANCELLED'
    """
    jobs = []
    for line in rows_of(text):
        # A folder's name may contain the separator, so it is the last field and is never split.
        try:
            job, state, nodes, folder = line.split(_BAR, len(_SACCT_FIELDS) - 1)
            jobs.append(SlurmJob(job, state.split()[0], nodes=nodes, folder=folder))
        except (ValueError, IndexError):
            raise SlurmError(f"sacct answers with a line of another form: {line[:200]!r}") from None
    return jobs


def is_final(report: Mapping[str, Any], *, stop_requested: bool) -> bool:
    """Report whether the controller's report is the job's end, whatever Slurm does next.

    After a stop without a stop request, or after a lost host, Slurm may restart the job.
    """
    status = report.get("status")
    if status == STOPPED:
        return stop_requested or report.get("secondary_status") in LIMITS.values()
    if status == FAILED:
        return parse_failure(report["failure"]).interrupted_host is None
    return status == COMPLETED


def columns_of(
    report: Mapping[str, Any],
    job: SlurmJob | None,
    record: JobRecord,
    *,
    stop_requested: bool,
    last_words: str,
    now: float,
    touched: float = 0.0,
) -> dict[str, Any]:
    """Return the columns of a job's row; `job` is None when Slurm no longer knows the job.

    `report` is the controller's, which it touched at the time `touched`; `stop_requested` says whether the user asked
    for a stop, `last_words` is the end of the batch script's output.
    """
    if is_final(report, stop_requested=stop_requested):
        return _reported(report, record)
    if job is None or job.over:
        if report.get("status") in TERMINAL and (job is None or job.state not in _ENDED_BY_SLURM):
            return _reported(report, record)
        return _ended_by_slurm(report, job, stop_requested=stop_requested, last_words=last_words, now=now)
    # A report with another attempt's number was left by a controller that no longer runs.
    current = {} if job.waits or report.get("attempt") != job.restarts else report
    # A report with an end that is not final: Slurm decides next, and until then the job is stopping.
    if stop_requested or current.get("status"):
        secondary = STOPPING
    elif job.restarts and not current:
        secondary = RESTARTING
    else:
        secondary = PENDING if job.waits else current.get("secondary_status", STARTING)
    # A report of an earlier release has no beats.
    is_silent = "beats" in current and now - touched > _MISSED_BEATS * current["beats"]
    silence = _SILENCE.format(job.id) if is_silent else ""
    # A pending attempt has not started, and the row keeps the first attempt's time.
    started = {"started": current["started"]} if "started" in current else {}
    return {
        **started,
        "status": STOPPING if stop_requested else IN_PROGRESS,
        "secondary_status": secondary,
        "description": _described(record, secondary, _message(job, record.name), silence),
    }


def _reported(report: Mapping[str, Any], record: JobRecord) -> dict[str, Any]:
    names = ("status", "secondary_status", "started", "ended", "failure", "model")
    columns = {name: report[name] for name in names if name in report}
    return {**columns, "description": _described(record, columns["secondary_status"], "")}


def _ended_by_slurm(
    report: Mapping[str, Any], job: SlurmJob | None, *, stop_requested: bool, last_words: str, now: float
) -> dict[str, Any]:
    """Return the columns of a job that ended without a report of its end."""
    started = {"started": report["started"]} if "started" in report else {}
    # After a stop request any end is a stop, also that of a controller that Slurm killed first.
    if stop_requested:
        status, secondary, why = STOPPED, STOPPED, None
    elif job is None:
        status, secondary, why = FAILED, FAILED, "Slurm no longer knows the job, and its controller reported no end"
    else:
        unreported = (
            f"Slurm job {job.id} ended ({job.state}) before its controller reported an end; do its nodes see its "
            f"folder? {last_words}"
        )
        status, secondary, why = _ENDED_BY_SLURM.get(job.state, (FAILED, FAILED, unreported.strip()))
    failure = None if why is None else Failure(exit_code=0, message=why).to_json()
    return {**started, "status": status, "secondary_status": secondary, "ended": now, "failure": failure}


def _message(job: SlurmJob, name: str) -> str:
    again = f", attempt {job.restarts + 1}" if job.restarts else ""
    if job.waits and "held" in f"{job.reason} {job.state}".lower().replace("hold", "held"):
        cause = " after a node could not start it (its Prolog failed?)" if "launch" in job.reason.lower() else ""
        return (
            f"Slurm holds job {job.id}{cause} and will not start it by itself ({job.reason}){again}: "
            f"`scontrol release {job.id}` lets it run (an administrator, where that is denied), "
            f"`herringbone stop {name}` ends it"
        )
    if job.waits:
        why = f" ({job.reason})" if job.reason not in ("", "None", "(null)") else ""
        return f"Slurm job {job.id} waits{why}{again}"
    return f"Slurm job {job.id} on {job.nodes or 'its nodes'}{again}"


def _described(record: JobRecord, secondary: str, message: str, standstill: str = "") -> str:
    """Add a state to those of the description, under the names that SageMaker gives them."""
    message = f"{message}; {standstill}" if standstill else message
    transitions = [] if record.description is None else json.loads(record.description)["SecondaryStatusTransitions"]
    new = {"Status": secondary, "StatusMessage": message}
    if secondary not in (COMPLETED, FAILED, STOPPED) and (not transitions or transitions[-1] != new):
        transitions = [*transitions, new]
    # `records.standstill` reads it.
    return json.dumps({"SecondaryStatusTransitions": transitions, **({"Standstill": standstill} if standstill else {})})
