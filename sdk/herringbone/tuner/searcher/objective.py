"""Choose the values of the objective metric among all values that a job reports. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from herringbone.events.view import Series


def curve_of(series: Iterable[Series], metric: str) -> tuple[float, ...]:
    """Return the objective's values in the order in which one rank reported them; () if none did.

    >>> curve_of(job.metrics().series, "accuracy")         # doctest: +SKIP
    (0.81, 0.93)

    Several ranks may report the metric. The lowest rank of the first host counts, and not the one that reported last,
    as on SageMaker: the result of a search must not depend on which rank was faster.
    """
    named = [one for one in series if one.name == metric and one.values]
    return tuple(min(named, key=_order).values) if named else ()


def _order(series: Series) -> tuple[bool, int, int, str, str]:
    # Shorter names first: algo-2 comes before algo-10.
    return series.rank is None, series.rank or 0, len(series.host), series.host, series.source


def objective_of(curve: Sequence[float], status: str) -> float | None:
    """Return the objective of a job that is over: its last value, as on SageMaker; None for a failed job.

    >>> objective_of((0.81, 0.93), "Completed"), objective_of((0.81,), "Failed")
    (0.93, None)
    """
    return curve[-1] if curve and status in ("Completed", "Stopped") else None
