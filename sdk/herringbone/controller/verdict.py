"""The verdict on a job, from how its hosts ended. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from herringbone.records.index import COMPLETED, FAILED, LIMITS, POLICY_STOPPED, STOPPED
from herringbone_contract.failure import STOPPED_CODE, Failure
from herringbone_contract.faults.policies import DRAIN, IDLE


@dataclass(frozen=True, slots=True)
class HostEnd:
    """The end of one host.

    `ordered` means that the controller signalled the host, so that its exit code says nothing about the job. `record`
    is the host's `failure.json`, `tail` the last lines of its log. `cause` is the reason for the end, when the platform
    knows it and the host does not. `lost` means that the script cannot be the reason.
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
    """SageMaker's two states and the failure, if there is one; `lost` is the host that the platform lost."""

    status: str
    secondary_status: str
    failure: Failure | None = None
    lost: str | None = None


def judge(ends: Sequence[HostEnd], *, stopped: bool = False, limit: str = "") -> Verdict:
    """Return the verdict; `ends` are in the order of time, `stopped` and `limit` say why hosts were signalled.

    `limit` is the option whose limit was reached, such as "max_run"; "" for none.

    A stop or a limit that signalled no host leaves the verdict as it is.

    >>> judge([HostEnd("algo-1", 0), HostEnd("algo-2", 137)]).failure.render()
    'algo-2: exit code 137, killed by SIGKILL'
    """
    failed = [end for end in ends if end.exit_code != 0 and not end.ordered]
    # A real failure comes before a stop: the stop may have been the answer to it.
    if failed:
        failure = _first_failure(failed, {end.host: end.record for end in ends if end.record is not None})
        if failure.fault not in ("", DRAIN) and failure.exit_code == STOPPED_CODE:
            # A watcher has stopped the job, as its policy says.
            return Verdict(STOPPED, LIMITS["idle_timeout"] if failure.fault == IDLE else POLICY_STOPPED)
        return Verdict(FAILED, FAILED, failure, _lost_host(failure, failed))
    if limit:
        return Verdict(STOPPED, LIMITS[limit])
    # A stop that came when all hosts had ended has stopped nothing.
    if stopped and any(end.ordered for end in ends):
        return Verdict(STOPPED, STOPPED)
    return Verdict(COMPLETED, COMPLETED)


def _first_failure(failed: Sequence[HostEnd], records: Mapping[str, Failure]) -> Failure:
    """Return the failure that came first.

    A host killed by a signal leaves no record, and the records of the others only say that they lost contact with it.
    So a killed host comes before all records. All hosts that reach the first one record its word. A host that is
    cut off records that it lost a healthy one, so the record that most hosts have comes first.
    """
    votes = Counter((record.host, record.rank) for record in records.values())
    for end in failed:
        if end.record is None and end.exit_code > 128:
            return Failure(host=end.host, exit_code=end.exit_code, message=end.cause, log_tail=end.tail)
    recorded = [end.record for end in failed if end.record is not None]
    if recorded:
        # Of equally many, the first by time.
        return _with_cause(
            _with_other_side(max(recorded, key=lambda record: votes[record.host, record.rank]), records), failed
        )
    # A host that the controller signalled may have recorded a failure before the signal reached it.
    for record in records.values():
        return record
    first = failed[0]
    return Failure(host=first.host, exit_code=first.exit_code, message=first.cause, log_tail=first.tail)


def _with_other_side(record: Failure, records: Mapping[str, Failure]) -> Failure:
    """Add to the loss of a host that it has lost the others as well: each side knows only that the other is silent."""
    theirs = records.get(record.lost_host or "")
    if theirs is None or theirs.lost_host in (None, record.lost_host):
        return record
    if " (silent " not in record.message or " (silent " not in theirs.message:
        # A host that stood still finds its connection closed when it goes on; it has not been waiting for the others.
        return record
    accusers = [host for host, each in records.items() if each.lost_host == record.lost_host]
    if len(accusers) > 1:
        # Several hosts still reach each other, so the one that is alone is cut off.
        return record
    message = f"{record.message}; {record.lost_host} lost contact with {theirs.lost_host}, too: the cause may be either"
    return record._replace(message=f"{message}, or the network between them")


def _lost_host(failure: Failure, failed: Sequence[HostEnd]) -> str | None:
    """Return the host that was lost; None when the script failed, or memory was short.

    A supervisor ends by a signal only when somebody kills it, or its machine.
    """
    if failure.rank is not None or failure.exception:
        return None
    ends = {end.host: end for end in failed}
    end = ends.get(failure.host or "")
    if end is not None and (end.lost or (end.record is None and end.exit_code > 128 and not end.cause)):
        return end.host
    return failure.interrupted_host


def _with_cause(record: Failure, failed: Sequence[HostEnd]) -> Failure:
    """Add why a rank was killed, which its own host could not see."""
    cause = next((end.cause for end in failed if end.host == record.host), "")
    if record.exit_code <= 128 or record.message or not cause:
        return record
    return record._replace(message=cause)
