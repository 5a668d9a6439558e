"""How a job stands, from how its hosts stand on their machines. Pure."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from herringbone.controller.verdict import HostEnd, Verdict, judge
from herringbone.jobs.index import COMPLETED, FAILED, MAX_RUNTIME_EXCEEDED, STOPPED, TERMINAL
from herringbone_contract.errors import ContractError
from herringbone_contract.failure import Failure
from herringbone_contract.failure_text import parse_failure

# What a supervisor exits with that was told to stop, by its own controller or by another host.
_STOPPED_CODE = 143


@dataclass(frozen=True, slots=True)
class HostState:
    """One host as its machine last told of it: its row there, and once it is over, its failure's record.

    `ahead` is how far the machine's clock is ahead of ours, in seconds. `lost` says why the machine is given up; empty
    while it is not. `forgotten` says that it is there, and has nothing of the job.
    """

    host: str
    machine: str
    row: dict[str, Any] | None = None
    record: str | None = None
    ahead: float = 0.0
    lost: str = ""
    forgotten: bool = False

    @property
    def done(self) -> bool:
        return self.row is not None and self.row["status"] in TERMINAL

    @property
    def ended(self) -> float:
        """When it ended, by our clock."""
        return (self.row["ended"] or 0.0) - self.ahead if self.row is not None else 0.0


def is_over(states: Sequence[HostState]) -> bool:
    """Say whether nothing more will come. Machines that are all silent are not lost: it may be our network."""
    heard = any(state.done or state.forgotten for state in states)
    return heard and all(state.done or state.lost for state in states)


def judge_job(states: Sequence[HostState]) -> Verdict:
    """Return the verdict on a job that is over.

    >>> row = {"status": "Failed", "secondary_status": "Failed", "ended": 1.0,
    ...        "failure": Failure(host="algo-1", exit_code=137).to_json()}
    >>> judge_job([HostState("algo-1", "gpu-1", row)]).failure.render()
    'algo-1: exit code 137, killed by SIGKILL'
    """
    done = sorted((state for state in states if state.done), key=lambda state: state.ended)
    rows = [state.row for state in done if state.row is not None]
    stopped = any(row["secondary_status"] == STOPPED for row in rows)
    max_run_over = any(row["secondary_status"] == MAX_RUNTIME_EXCEEDED for row in rows)
    # A supervisor whose controller was killed has all hosts stop.
    abandoned = any(row["status"] == FAILED and _failure(row).host is None for row in rows)
    ends = [_end(state, told=stopped or max_run_over or abandoned) for state in done]
    verdict = judge(ends, stopped=stopped, max_run_over=max_run_over)
    lost = next((state for state in states if state.lost and not state.done), None)
    if lost is None:
        return verdict
    where = f"{lost.machine} {'is there' if lost.forgotten else 'cannot be reached'}: {lost.lost}"
    if not done:
        return Verdict(FAILED, FAILED, Failure(host=lost.host, exception="HostError", message=where, exit_code=0))
    if verdict.status == COMPLETED:
        why = f"the other hosts ran to their end, but {where}; what {lost.host} left is still there"
        return Verdict(FAILED, FAILED, Failure(host=lost.host, exception="HostError", message=why, exit_code=0))
    if verdict.failure is not None and verdict.failure.host == lost.host:
        message = ": ".join(filter(None, (verdict.failure.message, where)))
        verdict = replace(verdict, failure=verdict.failure._replace(message=message))
    # What others failed with may be no more than that they could not reach it.
    return verdict if verdict.failure is None else replace(verdict, lost=lost.host)


def _end(state: HostState, *, told: bool) -> HostEnd:
    assert state.row is not None
    if state.row["status"] == STOPPED:
        return HostEnd(state.host, _STOPPED_CODE, ordered=True)
    if state.row["status"] == COMPLETED:
        return HostEnd(state.host, 0)
    failure = _failure(state.row)
    record = None
    if state.record is not None:
        with contextlib.suppress(ContractError):
            record = parse_failure(state.record)
    # A stop that reached one host reaches the others through it, before their own controllers hear of it.
    ordered = told and record is None and failure.exit_code == _STOPPED_CODE
    # Where no host is named, its controller died.
    lost = failure.host is None
    return HostEnd(state.host, failure.exit_code or 1, ordered, record, failure.log_tail, failure.message, lost)


def _failure(row: dict[str, Any]) -> Failure:
    return Failure() if row["failure"] is None else parse_failure(row["failure"])
