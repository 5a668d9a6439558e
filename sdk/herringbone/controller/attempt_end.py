"""The end of an attempt, wherever its hosts ran: judge it, restart the job or pack its results, record the end.

    hosts over --> judge --> decide_end --> another attempt: `restart`, and the job goes on
                                 |
                                 +-------> none: collect --> pack --> send --> `finish`

`decide_end` and `last_columns` are pure: values in, values out. `EndedHosts` is the transport. The controller of a job
has one for its hosts (`completion`), a client has one for machines that it logs in to (`backends.ssh.finish`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from herringbone.controller.artifacts import pack_model, pack_output
from herringbone.controller.hosts import Conclusion, Restart
from herringbone.controller.retry import Attempt, Policies, decide, find_policy, num_failed, replacements, unkillable
from herringbone.controller.verdict import Verdict
from herringbone.plan.budget import bill_text
from herringbone.records.index import COMPLETED, FAILED, INTERRUPTED, LIMITS, STOPPED
from herringbone.records.job_events import JobEvents, held_seconds
from herringbone_contract.errors import HerringboneError
from herringbone_contract.failure import Failure
from herringbone_contract.faults.policies import DRAIN
from herringbone_contract.paths import Paths

if TYPE_CHECKING:
    from herringbone.controller.artifacts import Bases

# A watched packing asks this often whether it is to end, and says this often how far it is.
_CHECK_SECONDS, _REPORT_SECONDS = 0.1, 30.0


@dataclass(frozen=True, slots=True)
class Decision:
    """`failed` is the attempt that failed, if another one follows; `notice` is a line for the log."""

    failed: Attempt | None = None
    notice: str = ""


def decide_end(
    verdict: Verdict,
    logs: Mapping[str, str],
    *,
    policies: Policies,
    retries: int,
    machines: Mapping[str, str],
    earlier: Sequence[Attempt],
) -> Decision:
    """Decide whether a job that nobody has stopped goes on after an attempt, and without which machines.

    >>> from herringbone_contract.failure import Failure
    >>> lost = Verdict("Failed", "Failed", Failure(host="algo-1", exit_code=137), lost="algo-1")
    >>> end = decide_end(lost, {}, policies=Policies(), retries=3, machines={"algo-1": "n1"}, earlier=[])
    >>> end.failed.number, end.failed.blamed
    (1, ('n1',))

    `logs` are the ends of the hosts' logs. `machines` maps hosts to machines, `earlier` are the failed attempts before
    this one.
    """
    failed = decide(verdict, find_policy(policies, verdict, logs), machines, earlier, retries, unkillable(logs))
    is_last = verdict.failure is not None and 0 < retries <= num_failed(earlier)
    return Decision(failed, f"attempt {len(earlier) + 1} of {len(earlier) + 1} has failed, too" if is_last else "")


def not_restarted(verdict: Verdict, error: Exception) -> Verdict:
    """Return the verdict on a job that was to have another attempt, which could not be started."""
    assert verdict.failure is not None
    why = f"{verdict.failure.message}; the job could not be restarted: {error}".removeprefix("; ")
    return replace(verdict, failure=verdict.failure._replace(message=why))


def last_columns(verdict: Verdict, model: Path | str | None, now: float) -> dict[str, Any]:
    """Return the columns of the record of a job that is over."""
    return {
        "status": verdict.status,
        "secondary_status": verdict.secondary_status,
        "ended": now,
        "failure": None if verdict.failure is None else verdict.failure.to_json(),
        "model": None if model is None else str(model),
    }


class NotSentError(Exception):
    """Something that the job was to write to S3 is not there."""


class EndedHosts(Protocol):
    """The hosts of one attempt that is over: what they left, and the way to start them again."""

    job: str
    # The number of restarts that the job may have.
    retries: int
    policies: Policies
    # The attempts of this job that failed before this one.
    earlier: Sequence[Attempt]
    # The machine of each host, by host name; empty when all hosts are on one machine.
    machines: Mapping[str, str]
    compress: bool
    # The dollars of all hosts an hour, None where nobody knows or tells them, and the job's file of events.
    hourly_cost: float | None
    events: Path

    def judge(self) -> Verdict:
        """Return the verdict on the attempt."""

    @property
    def stopping(self) -> str:
        """The secondary status of a job that somebody asked to stop, or whose time is over; "" for neither."""

    @property
    def has_others(self) -> bool:
        """Report whether an attempt may be given other machines, by who decides here."""
        return False

    @property
    def is_part(self) -> bool:
        """Report that another process judges the job, of which these are some of the hosts."""
        return False

    @property
    def planned(self) -> Attempt | None:
        """The attempt that was ended to go on with another number of hosts; None where its end was not planned."""
        return None

    def logs(self) -> Mapping[str, str]:
        """Return the end of each host's log in this attempt, by host name."""

    def say(self, text: str) -> None:
        """Write a line into the first host's log."""

    def restart(self, failed: Attempt) -> Restart:
        """Announce and start the attempt after `failed`. Raises `HerringboneError` or `OSError`."""

    def requeue(self) -> bool:
        """Have another controller run a job that the platform has interrupted; False where the job is over."""
        return False

    def release(self) -> None:
        """Give back what no attempt needs any more, before the results are packed."""

    def collect(self, verdict: Verdict) -> None:
        """Record that the job is Uploading where that takes a while, and bring the results to the folders in `bases`.

        Raises `HerringboneError` or `OSError`.
        """

    def output(self) -> Path | None:
        """Return the folder for packed results; None when another process packs them. Raises `OSError`."""

    def bases(self) -> Bases:
        """Return the hosts' folders in the order of the plan, which decides whose file is packed of two."""

    def packing_is_ended(self) -> bool:
        """Report whether the user asked to end the packing."""

    def send(self, model: Path | None) -> Path | str | None:
        """Send results to S3 if they belong there; return the model's address or path.

        Raises `NotSentError` or `HerringboneError`.
        """

    def failure_of(self, error: Exception) -> Failure:
        """Return the failure of a job whose scripts ended well, and whose results are not where they belong."""

    def finish(self, verdict: Verdict, model: Path | str | None) -> None:
        """Remove what is left of the hosts; then write the end into the record, which others wait for."""


def end_attempt(hosts: EndedHosts) -> Conclusion:
    """Bring an attempt to its end; the record says that the job is over only when nothing of the hosts is left."""
    verdict = hosts.judge()
    replaced = replacements(verdict, hosts.policies, hosts.earlier) if hosts.has_others else 0
    retries = hosts.retries + replaced
    # Logs are read for the decision alone, which takes a while.
    if verdict.failure is not None and retries:
        decision = decide_end(
            verdict,
            hosts.logs(),
            policies=hosts.policies,
            retries=retries,
            machines=hosts.machines,
            earlier=hosts.earlier,
        )
        if decision.notice:
            hosts.say(decision.notice)
        if decision.failed is not None:
            try:
                if not hosts.stopping and (outcome := hosts.restart(decision.failed)) is not Restart.NONE:
                    return Conclusion.RESTART if outcome is Restart.HERE else Conclusion.FAILED
            except (HerringboneError, OSError) as error:
                if not hosts.stopping:
                    hosts.say(f"the job cannot be restarted: {error}")
                    verdict = not_restarted(verdict, error)
            if hosts.stopping:
                # The fault alone would not have ended the job.
                limit = next((option for option, status in LIMITS.items() if status == hosts.stopping), "")
                ended = f"{limit} has stopped the job" if limit else "the job was stopped"
                hosts.say(f"{decision.failed.why}; no other attempt follows, because {ended}")
                verdict = Verdict(STOPPED, hosts.stopping)
    if verdict.status == COMPLETED and (planned := hosts.planned) is not None:
        if (failure := _resize(hosts, planned)) is None:
            return Conclusion.RESTART
        verdict = Verdict(FAILED, FAILED, failure)
    if verdict.secondary_status == INTERRUPTED and hosts.requeue():
        return Conclusion.FAILED
    if verdict.failure is not None and verdict.failure.fault == DRAIN and not hosts.is_part:
        # No attempt follows, and the script is not at fault: `run --resume` goes on.
        verdict = Verdict(STOPPED, INTERRUPTED)
    hosts.release()
    model: Path | str | None = None
    try:
        hosts.collect(verdict)
        # The output of a failed job may say why it failed; its model is not complete.
        model = packed = _pack(hosts, with_model=verdict.failure is None)
        model = hosts.send(packed)
    except PackingStoppedError:
        # A job that was stopped or failed before keeps that as its reason.
        if verdict.status == COMPLETED:
            verdict = Verdict(STOPPED, STOPPED)
    except (HerringboneError, NotSentError, OSError) as error:
        # The failure of the script says more than a full disk, or a machine that is gone.
        if verdict.failure is None:
            verdict = Verdict(FAILED, FAILED, hosts.failure_of(error))
    if hosts.hourly_cost is not None:
        bill = bill_text(hosts.hourly_cost, len(hosts.bases()), held_seconds(hosts.events, time.time()))
        hosts.say(f"bill: {bill}")
        JobEvents(hosts.events).bill(bill)
    hosts.finish(verdict, model)
    return Conclusion.OVER if verdict.failure is None else Conclusion.FAILED


def _resize(hosts: EndedHosts, planned: Attempt) -> Failure | None:
    """Start the attempt with another number of hosts; return the failure of a job that cannot have it."""
    try:
        hosts.restart(planned)
    except (HerringboneError, OSError) as error:
        how = f"`herringbone run --resume {hosts.job}` goes on"
        return Failure(message=f"{planned.why}; the job could not be restarted: {error}; {how}")
    return None


def _pack(hosts: EndedHosts, *, with_model: bool) -> Path | None:
    """Pack the hosts' outputs, and return the path of the model.

    Raises `PackingStoppedError` when the user ends the packing, and `OSError` as `pack` does.
    """
    if (output := hosts.output()) is None:
        return None

    def say(text: str) -> None:
        hosts.say(f"packing: {text}")

    bases, watch = hosts.bases(), PackingWatch(is_ended=hosts.packing_is_ended, say=say)
    try:
        pack_output(bases, output, compress=hosts.compress, say=say, step=watch)
        return pack_model(bases, output, compress=hosts.compress, say=say, step=watch) if with_model else None
    except PackingStoppedError:
        if with_model:
            say(not_packed(hosts.job, ", ".join(str(Paths(base[1]).model) for base in bases)))
        raise


class PackingStoppedError(Exception):
    """The user has ended the packing: no archive was made, and the hosts' folders stay as they are."""


class PackingWatch:
    """The `step` of `artifacts.pack`: `is_ended` is asked ten times a second, `say` gets a line every 30 seconds.

    >>> watch = PackingWatch(is_ended=lambda: True, say=print, clock=lambda: 7.0)
    >>> watch(4096, 1 << 30)
    Traceback (most recent call last):
    herringbone.controller.attempt_end.PackingStoppedError

    `clock` returns seconds.
    """

    def __init__(
        self, *, is_ended: Callable[[], bool], say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._is_ended, self._say, self._clock = is_ended, say, clock
        self._packed = 0
        self._checks_at = self._reports_at = clock()
        self._reports_at += _REPORT_SECONDS

    def __call__(self, packed: int, total: int) -> None:
        """Note that `packed` more bytes of `total` are packed. Raises `PackingStoppedError`."""
        self._packed += packed
        now = self._clock()
        if now >= self._checks_at:
            self._checks_at = now + _CHECK_SECONDS
            if self._is_ended():
                raise PackingStoppedError
        # Without a total the files are still being listed.
        if now >= self._reports_at and total:
            self._reports_at = now + _REPORT_SECONDS
            self._say(f"{self._packed / 2**30:.1f} of {total / 2**30:.1f} GiB are packed")


def not_packed(job: str, folders: str) -> str:
    """Return the message for a job whose packing was ended; `folders` are those of its model.

    >>> not_packed("digits-1", "hosts/algo-1/ml/model").partition(":")[0]
    'the model was not packed, because the job was stopped again'
    """
    return (
        f"the model was not packed, because the job was stopped again: it is in {folders}, and "
        f"`herringbone repack {job}` packs it"
    )
