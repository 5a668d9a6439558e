"""`herringbone plan --faults`: what faults cost the job, as lines and tables."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from herringbone.plan.plan import JobPlan
    from herringbone.prediction.faults.forecast import FaultForecast
    from herringbone.prediction.faults.options import FaultWords

_MOST_HEARTBEAT = 86400.0


def forecast_of(plan: JobPlan, words: FaultWords) -> FaultForecast:
    """Return what faults cost the job of a plan. Raises `OptionError` for a cost that is not known."""
    # Imported here: most plans have no forecast.
    from herringbone.backends.slurm.review import RETRIES
    from herringbone.prediction.faults.costs import costs_of
    from herringbone.prediction.faults.forecast import fault_forecast
    from herringbone_contract.constants import DEFAULT_HEARTBEAT_SECONDS, HostVariable
    from herringbone_contract.errors import OptionError

    heartbeat = os.environ.get(HostVariable.HEARTBEAT) or DEFAULT_HEARTBEAT_SECONDS
    seconds = 0.0
    with contextlib.suppress(ValueError):
        seconds = float(heartbeat)
    if not 0 < seconds < _MOST_HEARTBEAT:
        raise OptionError(f"{HostVariable.HEARTBEAT}={heartbeat}: expected seconds, more than 0 and less than a day")
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
            "-" if row.steps is None else f"{row.steps:,}",
            *map(_percent, (row.loss.saves, row.loss.redone, row.loss.down)),
            shown_seconds(forecast.run * (1 - row.loss.ettr)),
            _percent(row.loss.ettr),
            row.note,
        )
        for row in forecast.intervals
    ]
    show_table([("SAVE TO", "EVERY", "STEPS", "IN SAVES", "DONE AGAIN", "DOWN", "LOST", "ETTR", ""), *intervals])
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
