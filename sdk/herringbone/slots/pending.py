"""The line as a backend sees it: enter it, refuse a job or leave it to a waiter, and what its row says meanwhile."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypedDict

from herringbone.records.index import PENDING, JobIndex, JobRecord
from herringbone.records.job_events import JobEvents
from herringbone.slots.claim import Claim, open_line
from herringbone.slots.line import Granted, Waiting, foreign_text, shown_shares
from herringbone.slots.ticket import Wants, encode
from herringbone.system.descriptors import CONTROLLER_SIGNALS
from herringbone.system.detached_process import blocked, hand_over, start_detached
from herringbone.system.processes import identity, pid_of
from herringbone_contract.errors import LaunchError, UnsupportedError
from herringbone_contract.failure import Failure

if TYPE_CHECKING:
    from typing import Any

    from herringbone.plan.plan import JobPlan
    from herringbone.protocols.controller_config import ClaimConfig
    from herringbone.records.home import Home
    from herringbone.slots.probe import Probe


class WaiterConfig(TypedDict):
    """One waiting job, as JSON on its waiter's standard input, because the plan may hold secrets.

    `ticket` is the text of the ticket. `deadline` is in seconds since 1970, None without `max_wait`.
    """

    job: str
    backend: str
    claim: ClaimConfig
    ticket: str
    plan: dict[str, Any]
    deadline: float | None


def enter_line(plan: JobPlan, wants: Wants, home: Home, probe: Probe) -> Claim | None:
    """Enter this machine's line; None for a job that claims nothing, or where nobody claims anything.

    Raises `UnsupportedError` for what the machine can never give.
    """
    if not wants:
        return None
    line = open_line(os.environ, probe)
    if line is None:
        if plan.queue:
            raise UnsupportedError("queue: HERRINGBONE_SLOTS is off here, so there is no line; unset it")
        return None
    options = plan.options
    return line.enter(
        plan.job_name,
        home=str(home.path),
        wants=wants,
        priority=options.priority,
        max_run=float(plan.time_limit),
        client=os.getpid(),
    )


def is_granted(plan: JobPlan, slot: Claim) -> bool:
    """Take the devices if they are free; raise `LaunchError` for a job that may not wait for them."""
    decision = slot.advance()
    if isinstance(decision, Granted):
        return True
    if not plan.queue:
        raise LaunchError(_refusal(plan, slot, decision))
    return False


@contextmanager
def left_on_error(claim: Claim | None) -> Iterator[None]:
    """Leave the line if the body fails; close this process's descriptor in any case."""
    try:
        yield
    except BaseException:
        if claim is not None:
            claim.leave()
        raise
    finally:
        if claim is not None:
            claim.close()


def waiter_config(plan: JobPlan, backend: str, slot: Claim) -> WaiterConfig:
    """Return the config of the waiter of a job that has entered this machine's line."""
    return {
        "job": plan.job_name,
        "backend": backend,
        "claim": slot.config,
        "ticket": encode(slot.ticket).decode(),
        "plan": plan.to_send(),
        "deadline": deadline_of(plan, slot.ticket.arrival),
    }


def deadline_of(plan: JobPlan, arrival: float) -> float | None:
    """Return the time at which a job has waited for too long; None without `max_wait`."""
    return None if plan.options.max_wait is None else arrival + plan.options.max_wait


def leave_to_waiter(
    module: str,
    config: Mapping[str, Any],
    home: Home,
    *,
    stop: Callable[[str], None],
    started: Callable[[str], None] = lambda _: None,
    slot: Claim | None = None,
) -> None:
    """Start a module as the waiter of a job whose row this process has claimed, and hand it `config`.

    `slot` is the job's place in this machine's line; None for lines of other machines. `started` gets the waiter's
    identity. `stop` stops a job that is the waiter's already.
    """
    job, folder, index = config["job"], home.job(config["job"]), JobIndex(home.index)
    waiter, is_handed_over = None, False
    JobEvents(folder.job_events).state(PENDING)
    try:
        with blocked(CONTROLLER_SIGNALS), folder.controller_log.open("wb") as log:
            # From its start on two processes keep the ticket alive, so there is no moment in which none does.
            inherited = [] if slot is None else [slot.descriptor]
            waiter = start_detached(
                [sys.executable, "-m", module, job], log=log, folder=folder.path, inherited=inherited
            )
            index.update(job, client=str(identity(waiter.pid)), secondary_status=PENDING)
            started(str(identity(waiter.pid)))
            if slot is not None:
                slot.sign(str(identity(waiter.pid)))
            hand_over(waiter, config)
            # It outlives this Python on purpose.
            waiter.returncode, is_handed_over = 0, True
            if slot is not None:
                slot.is_handed_over = True
    except BaseException as error:
        if is_handed_over:
            # Ctrl-C that arrived while signals were blocked. The job is the waiter's, which ends it.
            stop(job)
            raise
        if waiter is not None:
            waiter.kill()
            waiter.communicate()
        # The waiter is dead. The claim of the name undoes the row of this process alone.
        index.update(job, client=identity(os.getpid()))
        if isinstance(error, BrokenPipeError):
            raise LaunchError(
                f"the process that waits for the job did not start: {folder.controller_words()}"
            ) from None
        raise


def signal_waiter(record: JobRecord) -> None:
    """Ask the waiter of a waiting job to leave the line; others have none."""
    if record.secondary_status == PENDING and record.client is not None:
        with suppress(ProcessLookupError):
            os.kill(pid_of(record.client), signal.SIGTERM)
            os.kill(pid_of(record.client), signal.SIGCONT)


def waiter_died() -> Failure:
    """Return the failure of a waiting job whose waiter died; no program of the job has an exit code."""
    return Failure(
        exit_code=0, message="the process that held the job's place in line was killed, or its machine restarted"
    )


def _refusal(plan: JobPlan, slot: Claim, waiting: Waiting) -> str:
    wants = slot.ticket.wants
    what = f"{wants.gpus} GPU{'s' * (wants.gpus != 1)}" if wants.gpus else shown_shares(wants)
    others = ", or choose other GPUs by CUDA_VISIBLE_DEVICES" if wants.gpus else ""
    who = [f"job {ticket.job} of {ticket.user} has {', '.join(ticket.granted or ())}" for ticket in waiting.holders]
    who += [f"job {ticket.job} of {ticket.user} waits in line before" for ticket in waiting.ahead]
    who += [text] if (text := foreign_text(waiting)) else []
    return (
        f"job {plan.job_name} needs {what} of this machine, and they are taken: {'; '.join(who[:4])}. Wait in line "
        f"with fit(queue=True) or `herringbone run --queue`{others}"
    )
