"""The kinds of faults of a job, and what may follow each of them. Pure.

A fault is found by what watches the job while it runs (`watched`), or once an attempt is over: by the end of a host, or
by a line of a log. docs/do/resume.md has the table, and which rule comes first.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

# Kinds of faults that are no failures: without another attempt, the job has stopped; it has used nothing.
DRAIN, IDLE = "drain", "idle"
# The kind of fault that ends an attempt before its first step.
UNHEALTHY = "unhealthy_host"
REPORT, RESTART, EXCLUDE_HOST, STOP, FAIL = "report", "restart", "exclude_host", "stop", "fail"
# Another attempt, which begins before the fault and passes over its data.
ROLL_BACK = "roll_back"
# Another attempt, with a layout that needs less memory.
REPLAN = "replan"
# Answers after which another attempt follows.
RETRIES = (RESTART, EXCLUDE_HOST, ROLL_BACK, REPLAN)


class Fault(NamedTuple):
    """A kind of fault: the answers that it may have, the default first, and what it is."""

    answers: tuple[str, ...]
    what: str
    watched: bool = False


FAULTS: Mapping[str, Fault] = MappingProxyType(
    {
        "hang": Fault(
            (RESTART, REPORT, EXCLUDE_HOST, STOP, FAIL), "no rank of the job moves for `hang_timeout`", watched=True
        ),
        "straggler": Fault(
            (REPORT, RESTART, EXCLUDE_HOST, STOP, FAIL), "one rank keeps the others waiting in each step", watched=True
        ),
        "nan_loss": Fault((REPORT, ROLL_BACK, STOP, FAIL, RESTART), "a loss of any rank is no number", watched=True),
        "loss_spike": Fault(
            (REPORT, ROLL_BACK, STOP, FAIL, RESTART),
            "a loss is `loss_spike_factor` times its median, thrice in a row",
            watched=True,
        ),
        "replica_mismatch": Fault(
            (REPORT, EXCLUDE_HOST, RESTART, STOP, FAIL),
            "parameters of a rank have other bits than those of its replicas, says `check_replicas_every`",
            watched=True,
        ),
        IDLE: Fault((STOP, REPORT), "no device of the job is used for `idle_timeout`", watched=True),
        DRAIN: Fault(
            (EXCLUDE_HOST, RESTART, STOP), "the platform takes a host away, says `drain_notice`", watched=True
        ),
        UNHEALTHY: Fault(
            (EXCLUDE_HOST, RESTART, REPORT, FAIL),
            "a host cannot train, says the check before the first step",
            watched=True,
        ),
        "host_lost": Fault((RESTART, EXCLUDE_HOST, FAIL), "a host, or a process of ours on it, is gone"),
        "device_error": Fault((EXCLUDE_HOST, RESTART, FAIL), "the driver of a GPU says that it is broken"),
        "collective_timeout": Fault((RESTART, FAIL), "NCCL gave up an operation between ranks"),
        "out_of_memory": Fault((FAIL, REPLAN, RESTART), "a GPU, or torch on the CPU, has too little memory"),
    }
)


def answer(kind: str, policies: Mapping[str, str]) -> str:
    """Return what follows a fault, by the user's own `fault_policies`, or else by the default.

    >>> answer("hang", {}), answer("hang", {"hang": "report"})
    ('restart', 'report')

    A kind that this release does not know is only reported.
    """
    fault = FAULTS.get(kind)
    chosen = policies.get(kind)
    if fault is None:
        return REPORT
    return chosen if chosen in fault.answers else fault.answers[0]
