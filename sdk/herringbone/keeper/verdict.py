"""How a job ended, decided from how its hosts ended. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from herringbone.jobs import COMPLETED, FAILED, MAX_RUNTIME_EXCEEDED, STOPPED
from herringbone_spec.failure import Failure


@dataclass(frozen=True, slots=True)
class HostEnd:
    """How one host ended. `record` is its `failure.json`; `tail` the last lines of its log.

    `ordered` says that the keeper had told it to end, so that its exit code says nothing about the job. `cause` is what
    ended it, where somebody else than the host knows.
    """

    host: str
    exit_code: int
    ordered: bool = False
    record: Failure | None = None
    tail: tuple[str, ...] = ()
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """SageMaker's two states, and the failure when there is one."""

    status: str
    secondary_status: str
    failure: Failure | None = None


def judge(ends: Sequence[HostEnd], *, stopped: bool = False, max_run_over: bool = False) -> Verdict:
    """Return the verdict; `ends` are in the order of time, `stopped` and `max_run_over` say why hosts were told to end.

    >>> judge([HostEnd("algo-1", 0), HostEnd("algo-2", 137)]).failure.render()
    'algo-2: exit code 137, killed by SIGKILL'
    """
    failed = [end for end in ends if end.exit_code != 0 and not end.ordered]
    if failed:
        return Verdict(FAILED, FAILED, _first_failure(failed, {e.host: e.record for e in ends if e.record is not None}))
    if max_run_over:
        return Verdict(STOPPED, MAX_RUNTIME_EXCEEDED)
    if stopped:
        return Verdict(STOPPED, STOPPED)
    return Verdict(COMPLETED, COMPLETED)


def _first_failure(failed: Sequence[HostEnd], records: Mapping[str, Failure]) -> Failure:
    """Return the first failure.

    A host killed outright leaves no record, and the others' then only say that they lost it: so it comes first.
    """
    for end in failed:
        if end.record is None and end.exit_code > 128:
            return Failure(host=end.host, exit_code=end.exit_code, message=end.cause, log_tail=end.tail)
    for end in failed:
        if end.record is not None:
            return _explained(end.record, failed)
    for record in records.values():
        return record
    first = failed[0]
    return Failure(host=first.host, exit_code=first.exit_code, message=first.cause, log_tail=first.tail)


def _explained(record: Failure, failed: Sequence[HostEnd]) -> Failure:
    """Add why a rank was killed, which its own host could not see."""
    cause = next((end.cause for end in failed if end.host == record.host), "")
    if record.exit_code <= 128 or record.message or not cause:
        return record
    return record._replace(message=cause)
