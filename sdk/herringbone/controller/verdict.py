"""How a job ended, decided from how its hosts ended. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from herringbone.jobs.index import COMPLETED, FAILED, MAX_RUNTIME_EXCEEDED, STOPPED
from herringbone_contract.failure import Failure


@dataclass(frozen=True, slots=True)
class HostEnd:
    """How one host ended. `record` is its `failure.json`; `tail` the last lines of its log.

    `ordered` says that the controller told it to end, so that its exit code says nothing about the job. `cause` is what
    ended it, where somebody else than the host knows. `lost` says that it is known to be none of the script's doing.
    """

    host: str
    exit_code: int
    ordered: bool = False
    record: Failure | None = None
    tail: tuple[str, ...] = ()
    cause: str = ""
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """SageMaker's two states, and the failure when there is one; `lost` is the host that the platform lost with it."""

    status: str
    secondary_status: str
    failure: Failure | None = None
    lost: str | None = None


def judge(ends: Sequence[HostEnd], *, stopped: bool = False, max_run_over: bool = False) -> Verdict:
    """Return the verdict; `ends` are in the order of time, `stopped` and `max_run_over` say why hosts were told to end.

    >>> judge([HostEnd("algo-1", 0), HostEnd("algo-2", 137)]).failure.render()
    'algo-2: exit code 137, killed by SIGKILL'
    """
    failed = [end for end in ends if end.exit_code != 0 and not end.ordered]
    if failed:
        failure = _first_failure(failed, {end.host: end.record for end in ends if end.record is not None})
        return Verdict(FAILED, FAILED, failure, _lost_host(failure, failed))
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


def _lost_host(failure: Failure, failed: Sequence[HostEnd]) -> str | None:
    """Return the host that was lost; None where the script failed, or memory was short.

    A supervisor ends by a signal only when somebody kills it, or its machine.
    """
    if failure.rank is not None or failure.exception:
        return None
    ends = {end.host: end for end in failed}
    end = ends.get(failure.host or "")
    if end is not None and (end.lost or (end.record is None and end.exit_code > 128 and not end.cause)):
        return end.host
    return failure.lost_host


def _explained(record: Failure, failed: Sequence[HostEnd]) -> Failure:
    """Add why a rank was killed, which its own host could not see."""
    cause = next((end.cause for end in failed if end.host == record.host), "")
    if record.exit_code <= 128 or record.message or not cause:
        return record
    return record._replace(message=cause)
