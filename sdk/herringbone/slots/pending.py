"""The line as a backend sees it: enter it, refuse a job or leave it to a waiter, and what its row says meanwhile."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypedDict

from herringbone.records.index import PENDING, JobRecord
from herringbone.slots.claim import Claim, open_line
from herringbone.slots.line import Granted, Waiting, can_ever_start, foreign_text, too_much
from herringbone.slots.ticket import Wants, encode
from herringbone.system.detached_process import hand_over, start_detached
from herringbone.system.processes import identity, pid_of
from herringbone_contract.errors import LaunchError, UnsupportedError
from herringbone_contract.failure import Failure

if TYPE_CHECKING:
    from typing import Any

    from herringbone.plan.plan import JobPlan
    from herringbone.protocols.controller_config import ClaimConfig
    from herringbone.records.home import Home
    from herringbone.slots.probe import Probe

_WAITER = "herringbone.backends.waiter"


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
    if not can_ever_start(wants, line.devices):
        raise UnsupportedError(too_much(wants, len(line.devices.gpus), line.devices.shares))
    options = plan.options
    return line.enter(
        plan.job_name,
        home=str(home.path),
        wants=wants,
        priority=options.priority,
        max_run=float(options.max_run),
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


@contextmanager
def start_waiter(plan: JobPlan, backend: str, slot: Claim, home: Home, environment: Mapping[str, str]) -> Iterator[str]:
    """Start the process that holds a waiting job; the body gets its identity, and the waiter its config afterwards."""
    config: WaiterConfig = {
        "job": plan.job_name,
        "backend": backend,
        "claim": slot.config,
        "ticket": encode(slot.ticket).decode(),
        "plan": plan.to_send(),
        "deadline": deadline_of(plan, slot.ticket.arrival),
    }
    # From its start on two processes keep the ticket alive, so there is no moment in which none does.
    with handed_to(_WAITER, plan.job_name, config, home, environment, inherited=[slot.descriptor]) as waiter:
        yield waiter
    slot.is_handed_over = True


def deadline_of(plan: JobPlan, arrival: float) -> float | None:
    """Return the time at which a job has waited for too long; None without `max_wait`."""
    return None if plan.options.max_wait is None else arrival + plan.options.max_wait


@contextmanager
def handed_to(
    module: str,
    job: str,
    config: Mapping[str, Any],
    home: Home,
    environment: Mapping[str, str],
    *,
    inherited: Sequence[int] = (),
) -> Iterator[str]:
    """Start a module as a job's waiter; the body gets its identity, and the waiter `config` after the body."""
    folder = home.job(job)
    with folder.controller_log.open("wb") as log:
        waiter = start_detached(
            [sys.executable, "-m", module, job],
            log=log,
            folder=folder.path,
            environment=environment,
            inherited=inherited,
        )
    try:
        yield str(identity(waiter.pid))
        hand_over(waiter, config)
    except BaseException as error:
        waiter.kill()
        waiter.communicate()
        if isinstance(error, BrokenPipeError):
            raise LaunchError(
                f"the process that waits for the job did not start: {folder.controller_words()}"
            ) from None
        raise
    # It outlives this Python on purpose.
    waiter.returncode = 0


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
    what = f"{wants.gpus} GPU{'s' * (wants.gpus != 1)}" if wants.gpus else f"{wants.shares} CPU shares"
    who = [f"job {ticket.job} of {ticket.user} has {', '.join(ticket.granted or ())}" for ticket in waiting.holders]
    who += [f"job {ticket.job} of {ticket.user} waits in line before" for ticket in waiting.ahead]
    who += [text] if (text := foreign_text(waiting)) else []
    return (
        f"job {plan.job_name} needs {what} of this machine, and they are taken: {'; '.join(who[:4])}. Wait in line "
        "with fit(queue=True) or `herringbone run --queue`, or choose other GPUs by CUDA_VISIBLE_DEVICES"
    )
