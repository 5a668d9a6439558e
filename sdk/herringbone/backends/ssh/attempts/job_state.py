"""Decide about a job from the states of its hosts on their machines: is it over, how did it end, who is lost. Pure."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from herringbone.controller.verdict import HostEnd, Verdict, judge
from herringbone.records.index import COMPLETED, FAILED, LIMITS, STOPPED, TERMINAL
from herringbone_contract.errors import ContractError
from herringbone_contract.failure import STOPPED_CODE, Failure
from herringbone_contract.failure_text import parse_failure

# The column `description` of a host's row on its machine.
KILLED_LATE = '{"killed": "it outlived the other hosts"}'
# After the end of one host, the others hear of it from their supervisors. A host that still has not ended after this
# time does not react any more.
PATIENCE_SECONDS = 5.0
# Shorter for a host with which the others lost contact: they have already waited three heartbeats for it.
BLAMED_PATIENCE_SECONDS = 1.0
# A machine with whose host the others lost contact gets a request, which a reachable machine answers within this time.
ANSWER_SECONDS = 0.75


@dataclass(frozen=True, slots=True)
class HostState:
    """The last report of a host's machine: the host's row and, once the host is over, its failure record.

    `ahead` is the lead of the machine's clock over ours, in seconds. `lost` is the reason for which nobody waits for
    the machine any more, empty while somebody does. `forgotten` says that the machine answers and does not know the
    job. `folders` are the folders with results, relative to the work folder; `unsafe` says why they must not be copied.
    `standstill` says that somebody has stopped the host's controller.
    """

    host: str
    machine: str
    row: dict[str, Any] | None = None
    record: str | None = None
    ahead: float = 0.0
    lost: str = ""
    forgotten: bool = False
    folders: Sequence[str] = ()
    unsafe: str = ""
    standstill: str = ""

    @property
    def done(self) -> bool:
        """Report whether the host is over."""
        return self.row is not None and self.row["status"] in TERMINAL

    @property
    def may_run(self) -> bool:
        """Report whether the host may be running: it is not over, and its machine has not forgotten it."""
        return not self.done and not self.forgotten

    @property
    def ended(self) -> float:
        """Return the time of the host's end, by our clock."""
        return (self.row["ended"] or 0.0) - self.ahead if self.row is not None else 0.0


def is_over(states: Sequence[HostState]) -> bool:
    """Report whether the job is over, so that no machine will report anything new."""
    # Without any answer at all the cause may be our own network, so silent machines alone end no job.
    return any(not state.may_run for state in states) and all(state.done or state.lost for state in states)


def ended_at(states: Sequence[HostState], now: float) -> float:
    """Return when the last host ended, by our clock; `now` where a machine is lost, whose host's end nobody knows."""
    return max(state.ended for state in states) if all(state.done for state in states) else now


class Outlived(NamedTuple):
    """Hosts that have not ended although others have: those to kill, and those that nobody waits for any more."""

    killed: frozenset[str] = frozenset()
    lost: frozenset[str] = frozenset()


def outlived(
    states: Sequence[HostState], waited: float, *, heard: Collection[str], cut_off: Collection[str]
) -> Outlived:
    """Decide about the hosts that run `waited` seconds after the first host's end.

        end -- ANSWER_SECONDS: blamed and silent hosts are lost -- patience: kill -- 2 x patience: all are lost

    The machines of `heard` have answered since, and those of `cut_off` have no connection.
    """
    living = {state.host for state in states if state.may_run}
    # Silent machines alone are never lost: without any answer the cause may be our own network.
    if len(living) in (0, len(states)):
        return Outlived()
    blamed = {_failure(state.row).host for state in states if state.done and state.row is not None}
    # Neither the other hosts nor this process can reach these machines.
    silent = living & blamed - set(heard) if waited >= ANSWER_SECONDS else set()
    living -= silent
    patience = BLAMED_PATIENCE_SECONDS if living <= blamed else PATIENCE_SECONDS
    if waited < patience:
        return Outlived(lost=frozenset(silent))
    # A second patience for the kill to take effect, unless no living machine has a connection that could carry it.
    is_over = waited >= 2 * patience or living <= set(cut_off)
    return Outlived(frozenset(living), frozenset(silent | living if is_over else silent))


def judge_job(states: Sequence[HostState]) -> Verdict:
    """Return the verdict on a job that is over.

    >>> row = {"status": "Failed", "secondary_status": "Failed", "ended": 1.0,
    ...        "failure": Failure(host="algo-1", exit_code=137).to_json()}
    >>> judge_job([HostState("algo-1", "gpu-1", row)]).failure.render()
    'algo-1: exit code 137, killed by SIGKILL'
    """
    # The first failure in time is the cause, and times of different machines compare by our clock only.
    done = sorted((state for state in states if state.done), key=lambda state: state.ended)
    rows = [state.row for state in done if state.row is not None]
    stopped = any(
        state.row is not None and state.row["secondary_status"] == STOPPED and not _was_killed_late(state)
        for state in done
    )
    reached = {row["secondary_status"] for row in rows}
    limit = next((option for option, status in LIMITS.items() if status in reached), "")
    # A supervisor whose controller was killed makes all hosts stop.
    controller_died = any(row["status"] == FAILED and _failure(row).host is None for row in rows)
    ends = [_host_end(state, stop_requested=stopped or bool(limit) or controller_died) for state in done]
    verdict = judge(ends, stopped=stopped, limit=limit)
    lost = next((state for state in states if state.lost and not state.done), None)
    if lost is not None:
        return _with_lost_machine(verdict, lost, done)
    late = next(filter(_was_killed_late, done), None)
    if late is None or verdict.status != COMPLETED:
        return verdict
    reason = f"{late.machine} did not end its host, which was then killed; look at the machine, and run the job again"
    return _without_host(late, reason)


def _with_lost_machine(verdict: Verdict, lost: HostState, done: Sequence[HostState]) -> Verdict:
    """Return the verdict on a job of which a machine was lost; `done` are the hosts that have reported their end."""
    reason = f"{lost.machine} {'answers' if lost.forgotten else 'cannot be reached'}: {lost.lost}"
    failure = Failure(host=lost.host, exception="HostError", message=reason, exit_code=0)
    if not done:
        return Verdict(FAILED, FAILED, failure)
    if verdict.status == COMPLETED and any(map(_was_killed_late, done)):
        # Somebody who heard of this machine's end had the others killed.
        return Verdict(FAILED, FAILED, failure._replace(exception=""), lost.host)
    if verdict.status == COMPLETED:
        return _without_host(lost, f"{reason}; the results of {lost.host} are still on its machine")
    if verdict.failure is not None and verdict.failure.host == lost.host:
        message = ": ".join(filter(None, (verdict.failure.message, reason)))
        verdict = replace(verdict, failure=verdict.failure._replace(message=message))
    # The other hosts may have failed only because they could not reach this one, so the retry rules count it as lost.
    return verdict if verdict.failure is None else replace(verdict, lost=lost.host)


def _without_host(state: HostState, reason: str) -> Verdict:
    # The model is not complete without this host's part.
    message = f"the other hosts completed, but {reason}"
    return Verdict(FAILED, FAILED, Failure(host=state.host, exception="HostError", message=message, exit_code=0))


def _was_killed_late(state: HostState) -> bool:
    """Report whether a host was killed because it outlived the others; nobody asked the job to stop then."""
    row = state.row
    return row is not None and row["secondary_status"] == STOPPED and row.get("description") == KILLED_LATE


def _host_end(state: HostState, *, stop_requested: bool) -> HostEnd:
    assert state.row is not None
    if state.row["status"] == STOPPED:
        return HostEnd(state.host, STOPPED_CODE, ordered=True)
    if state.row["status"] == COMPLETED:
        return HostEnd(state.host, 0)
    failure = _failure(state.row)
    record = None
    if state.record is not None:
        with contextlib.suppress(ContractError):
            record = parse_failure(state.record)
    # A stop that reached one host also reaches the others through that host, possibly before their own controllers
    # hear of it. To those controllers it looks like a failure.
    ordered = stop_requested and record is None and failure.exit_code == STOPPED_CODE
    # A failure that names no host is that of a dead controller.
    lost = failure.host is None
    return HostEnd(state.host, failure.exit_code or 1, ordered, record, failure.log_tail, failure.message, lost)


def _failure(row: dict[str, Any]) -> Failure:
    return Failure() if row["failure"] is None else parse_failure(row["failure"])
