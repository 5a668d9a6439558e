"""`herringbone plan --faults`: what faults cost the job, as lines and tables."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from herringbone.plan.plan import JobPlan
    from herringbone.prediction.faults.forecast import FaultForecast
    from herringbone.prediction.faults.options import FaultWords


def read_faults(text: str) -> FaultWords:
    """Return what `--faults` says. Raises `OptionError` for a text that says nothing."""
    from herringbone.prediction.faults.options import parse_faults

    return parse_faults(text)


def forecast_of(plan: JobPlan, words: FaultWords) -> FaultForecast:
    """Return what faults cost the job of a plan. Raises `OptionError` for a cost that is not known."""
    # Imported here: most plans have no forecast.
    from herringbone.backends.slurm.review import RETRIES
    from herringbone.prediction.faults.costs import costs_of
    from herringbone.prediction.faults.forecast import fault_forecast
    from herringbone_contract.constants import DEFAULT_HEARTBEAT_SECONDS, HostVariable
    from herringbone_contract.errors import OptionError

    heartbeat = os.environ.get(HostVariable.HEARTBEAT) or DEFAULT_HEARTBEAT_SECONDS
    try:
        seconds = float(heartbeat)
    except ValueError:
        raise OptionError(f"{HostVariable.HEARTBEAT}={heartbeat}: expected a number of seconds") from None
    costs = costs_of(plan, words, seconds)
    retries = plan.options.max_retry_attempts
    if retries is None and plan.backend == "slurm":
        retries = RETRIES
    return fault_forecast(plan, words, costs, retries)


def show_faults(forecast: FaultForecast) -> None:
    """Print a forecast: its figures, the loss by tier and interval, and the same job on other numbers of hosts."""
    from herringbone.plan.shown import rows_text
    from herringbone.show.cells import shown_number
    from herringbone.show.predictions import shown_seconds
    from herringbone.show.tables import show_table

    rows = [
        (
            "faults",
            f"one in {shown_seconds(forecast.mtbf)} on {forecast.hosts:,} host{'s' * (forecast.hosts != 1)}; "
            f"{shown_number(forecast.faults)} expected in {shown_seconds(forecast.run)}",
        ),
        ("a fault costs", f"{shown_seconds(forecast.down)}, the load of a checkpoint, and the work since it"),
        *(("note", note) for note in forecast.notes),
    ]
    print(f"\n{rows_text(rows)}\n")
    intervals = [
        (
            row.tier,
            shown_seconds(row.interval),
            "" if row.steps is None else f"{row.steps:,}",
            *map(_percent, (row.loss.saves, row.loss.redone, row.loss.down, row.loss.ettr)),
            row.note,
        )
        for row in forecast.intervals
    ]
    titles = ("SAVE TO", "EVERY", "STEPS", "LOST IN SAVES", "DONE AGAIN", "DOWN", "ETTR", "")
    kept = [at for at in range(len(titles)) if titles[at] != "STEPS" or any(row[at] for row in intervals)]
    show_table([tuple(row[at] for at in kept) for row in (titles, *intervals)])
    print(f"\nof jobs of {shown_seconds(forecast.run)} at their best intervals, where a save takes as long:")
    scaling = [
        (
            f"{row.hosts:,}",
            shown_seconds(row.mtbf),
            row.tier,
            shown_seconds(row.interval),
            _percent(row.ettr),
            f"{_percent(row.low)} to {_percent(row.high)}",
        )
        for row in forecast.scaling
    ]
    show_table([("HOSTS", "A FAULT IN", "SAVE TO", "EVERY", "ETTR", "95 % OF JOBS"), *scaling])


def _percent(part: float) -> str:
    """Return a part with the digits in which good jobs differ.

    >>> _percent(0.99871), _percent(0.0)
    ('99.87 %', '0 %')
    """
    return "0 %" if part == 0 else f"{100 * part:.2f} %"
