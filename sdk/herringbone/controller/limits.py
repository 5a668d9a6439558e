"""The limits that stop a job: its time, its budget, and the time in which its devices may be unused. Pure."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from herringbone.protocols.controller_config import ControllerConfig


class TimeLimit:
    """The limit that comes first: the `option` that sets it, the `seconds` until then, and a `text` for the log.

    `spent` are the seconds in which earlier controllers of the job have held its hosts.

    >>> limit = TimeLimit({"max_run": 60, "warning": 0, "budget": {"seconds": 90, "text": "$5 are spent"}}, spent=50.0)
    >>> limit.option, limit.seconds, limit.text
    ('max_cost', 40.0, '$5 are spent')
    """

    def __init__(self, config: ControllerConfig, spent: float) -> None:
        warning, budget = config["warning"], config["budget"]
        soon = f" in {warning:g} s" if warning else ""
        self.option, seconds, text = "max_run", float(config["max_run"]), f"max_run of {config['max_run']:g} s is over"
        paid = None if budget is None else budget["seconds"]
        if budget is not None and paid is not None and paid - spent < seconds:
            self.option, seconds, text = "max_cost", max(0.0, paid - spent), budget["text"]
        self.seconds, self.text = seconds - warning, text + soon


def stops_idle(config: ControllerConfig) -> bool:
    """Report whether the job is stopped when none of its devices is used, and not only reported."""
    from herringbone_contract.policies import STOP, answer

    return answer("idle", config["policies"]["faults"]) == STOP
