"""The money of a job: what it costs by the hour, and the time that its budget pays for. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from herringbone.system.times import shown_span
from herringbone_contract.errors import OptionError

_HOUR_SECONDS = 3_600
# Hosts need as long to start and to save.
_LEAST_SECONDS = 60


def dollars(hourly: float, seconds: float) -> float:
    """Return the dollars of some seconds.

    >>> dollars(7.2, 1800.0)
    3.6
    """
    return hourly * seconds / _HOUR_SECONDS


def spent_text(most: float, hourly: float) -> str:
    """Return the words for the end of a budget.

    >>> spent_text(5, 2.5)
    'max_cost of $5.00 is spent ($2.50 an hour)'
    """
    return f"max_cost of {shown_dollars(most)} is spent ({shown_dollars(hourly)} an hour)"


def shown_dollars(amount: float) -> str:
    """Return an amount as people write it; small prices keep their digits.

    >>> shown_dollars(1234.5), shown_dollars(0.0042)
    ('$1,234.50', '$0.0042')
    """
    return f"${amount:,.2f}" if amount >= 1 or round(amount, 2) == amount else f"${amount:.2g}"


def budget_seconds(max_cost: float, hourly: float) -> int:
    """Return the whole seconds that a budget pays for.

    >>> budget_seconds(5.0, 2.5)
    7200
    """
    return int(max_cost / hourly * _HOUR_SECONDS)


def check_budget(max_cost: float, hourly: float) -> None:
    """Raise `OptionError` for a budget that pays for too little."""
    if (seconds := budget_seconds(max_cost, hourly)) < _LEAST_SECONDS:
        raise OptionError(
            f"max_cost: {shown_dollars(max_cost)} pays for {seconds} s of these hosts, which cost "
            f"{shown_dollars(hourly)} an hour together; give more, or fewer or cheaper hosts"
        )


def hourly_of(plan: Mapping[str, Any]) -> float | None:
    """Return the dollars of all hosts an hour, by the plan of a job's row; None where they are not known."""
    hourly = plan.get("hourly_cost")
    return float(hourly) if isinstance(hourly, (int, float)) else None


def bill_text(hourly: float, hosts: int, seconds: float) -> str:
    """Return the cost of a job in words; `hourly` is that of all hosts.

    >>> bill_text(2.4, 2, 600.0)
    'about $0.40: 2 hosts for 10 min, $2.40 an hour together'
    """
    together = " together" if hosts > 1 else ""
    text = (
        f"about {shown_dollars(dollars(hourly, seconds))}: {hosts} host{'s' * (hosts != 1)} for {shown_span(seconds)}"
    )
    return f"{text}, {shown_dollars(hourly)} an hour{together}"
