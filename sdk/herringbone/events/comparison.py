"""Compare the prediction of a job with what the job measured: step time, and the peak of a rank's memory. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from herringbone.events.refusal import largest
from herringbone.events.view import JobView
from herringbone.show.predictions import shown_seconds
from herringbone.system.sizes import shown_memory
from herringbone_contract.prediction.answer import Answer, Prediction


class Compared(NamedTuple):
    """One figure, predicted and measured; `measured` is None where the job told nothing.

    `exact` is False where the measured figure counts more than the prediction does.
    """

    name: str
    predicted: float
    measured: float | None
    exact: bool = True

    @property
    def error(self) -> float | None:
        """The part by which the prediction is above (or below, then negative) what was measured."""
        return self.predicted / self.measured - 1 if self.measured and self.exact else None


def prediction_of(plan: Mapping[str, Any]) -> Prediction | None:
    """Return the prediction in the stored plan of a job; None without one, and for one of another release."""
    try:
        return msgspec.convert(plan["prediction"], Answer).planned
    except (KeyError, TypeError, msgspec.ValidationError):
        return None


def compare(prediction: Prediction, view: JobView) -> tuple[Compared, ...]:
    """Return the figures of a job next to those of its prediction.

    >>> [figure.name for figure in compare(prediction, view)]        # doctest: +SKIP
    ['step', 'memory']

    The step time is the median of the slowest rank's last steps. The memory is the highest peak of a rank: in torch's
    allocator on a GPU, elsewhere the growth of the process since torch was imported, which includes libraries' code.
    """
    figures = []
    if prediction.step is not None:
        medians = [statistics.median(times) for times in view.step_seconds.values() if times]
        figures.append(Compared("step", prediction.step.seconds.expected, max(medians, default=None)))
    if prediction.memory:
        held, device = max(view.memory_peaks.values(), default=(None, ""))
        figures.append(Compared("memory", largest(prediction).peak, held, exact=device == "cuda"))
    return tuple(figures)


def as_members(figures: tuple[Compared, ...]) -> dict[str, Any]:
    """Return the figures as `describe` shows them, in seconds and bytes.

    >>> as_members((Compared("step", 0.2, 0.25),))
    {'StepSeconds': {'Predicted': 0.2, 'Measured': 0.25, 'Error': -0.2}}
    """
    names = {"step": "StepSeconds", "memory": "PeakMemoryBytes"}
    return {
        names[figure.name]: {
            "Predicted": figure.predicted,
            **({} if figure.measured is None else {"Measured" if figure.exact else "ProcessGrowth": figure.measured}),
            **({} if figure.error is None else {"Error": round(figure.error, 4)}),
        }
        for figure in figures
    }


def as_tiles(figures: tuple[Compared, ...]) -> list[dict[str, str | None]]:
    """Return the figures as the page shows them."""
    names = {"step": "step time", "memory": "peak of a rank"}
    tiles = []
    for figure in figures:
        shown = shown_memory if figure.name == "memory" else shown_seconds
        name = names[figure.name] if figure.exact else "growth of a rank"
        measured = None if figure.measured is None else shown(figure.measured)
        tiles.append({"name": name, "predicted": shown(figure.predicted), "measured": measured})
    return tiles
