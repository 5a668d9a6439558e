"""Compare the prediction of a job with what the job measured: step time, and the peak of a rank's memory. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from herringbone.events.refusal import largest
from herringbone.events.view import JobView
from herringbone.show.predictions import shown_gib, shown_seconds
from herringbone_contract.prediction.answer import Answer, Prediction


class Compared(NamedTuple):
    """One figure, predicted and measured, and both in words; `measured` is None where the job told nothing.

    `exact` is False where the measured figure counts more than the prediction does.
    """

    name: str
    predicted: float
    measured: float | None
    predicted_text: str
    measured_text: str | None
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
        seconds = prediction.step.seconds.expected
        medians = [statistics.median(times) for times in view.step_seconds.values() if times]
        step = max(medians, default=None)
        figures.append(
            Compared("step", seconds, step, shown_seconds(seconds), None if step is None else shown_seconds(step))
        )
    if prediction.memory:
        peak = largest(prediction).peak
        held, device = max(view.memory_peaks.values(), default=(None, ""))
        text = None if held is None else shown_gib(held)
        figures.append(Compared("memory", peak, held, shown_gib(peak), text, exact=device == "cuda"))
    return tuple(figures)


def as_members(figures: tuple[Compared, ...]) -> dict[str, Any]:
    """Return the figures as `describe` shows them, in seconds and bytes.

    >>> as_members((Compared("step", 0.2, 0.25, "200 ms", "250 ms"),))
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
    return [
        {
            "name": names[figure.name] if figure.exact else "growth of a rank",
            "predicted": figure.predicted_text,
            "measured": figure.measured_text,
        }
        for figure in figures
    ]
