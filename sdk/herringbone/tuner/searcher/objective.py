"""Choose the values of the objective metric among all values that a job reports. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from herringbone.events.series import Series


# Longer curves than SageMaker's most epochs say no more about a trial.
MAX_CURVE = 20_000


def curve_of(series: Iterable[Series], metric: str) -> tuple[float, ...]:
    """Return the objective's values in the order in which one rank reported them; () if none did.

    >>> curve_of(job.metrics().series, "accuracy")         # doctest: +SKIP
    (0.81, 0.93)

    Several ranks may report the metric. The lowest rank of the first host counts, and not the one that reported last,
    as on SageMaker: the result of a search must not depend on which rank was faster. Of more than `MAX_CURVE` values,
    the first ones and the last one are returned.
    """
    named = [one for one in series if one.name == metric and one.values]
    values = tuple(min(named, key=_order).values) if named else ()
    # The objective is the last value, so a curve that is cut keeps it.
    return values if len(values) <= MAX_CURVE else (*values[: MAX_CURVE - 1], values[-1])


def _order(series: Series) -> tuple[bool, int, int, str, str]:
    # Shorter names first: algo-2 comes before algo-10.
    return series.rank is None, series.rank or 0, len(series.host), series.host, series.source


def objective_of(curve: Sequence[float], status: str) -> float | None:
    """Return the objective of a job that is over: its last value, as on SageMaker; None for a failed job.

    >>> objective_of((0.81, 0.93), "Completed"), objective_of((0.81,), "Failed")
    (0.93, None)
    """
    return curve[-1] if curve and status in ("Completed", "Stopped") else None
