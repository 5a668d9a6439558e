"""CloudWatch's GetMetricStatistics over the metrics of jobs, as AWS's SDK asks for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from herringbone.backends.registry import backend_named
from herringbone.events.metrics import job_metrics
from herringbone.events.series import Series
from herringbone.serve.calls import Call
from herringbone.serve.errors import ApiError
from herringbone.serve.trainings import Trainings

NAMESPACE, DIMENSION = "/aws/sagemaker/TrainingJobs", "TrainingJobName"
_MINUTE, _SHORT_PERIODS = 60, (1, 5, 10, 20, 30)
# CloudWatch's own limit of one answer.
_MAX_POINTS = 1440
_STATISTICS: dict[str, Callable[[Sequence[float]], float]] = {
    "SampleCount": lambda values: float(len(values)),
    "Average": lambda values: math.fsum(values) / len(values),
    "Sum": math.fsum,
    "Minimum": min,
    "Maximum": max,
}


class Statistics:
    """The operation on metrics; it takes the call and the members of its request. Raises `ApiError`."""

    def __init__(self, trainings: Trainings) -> None:
        self._trainings = trainings

    def get_metric_statistics(self, call: Call, request: dict[str, Any]) -> dict[str, Any]:
        name, start, end = request["MetricName"], request["StartTime"], request["EndTime"]
        _check(request)
        found = [series for series in self._series(call, request) if series.name == name]
        points = datapoints(found, start, end, request["Period"], request["Statistics"])
        return {"Label": name, "Datapoints": [{**point, "Unit": "None"} for point in points]}

    def _series(self, call: Call, request: dict[str, Any]) -> Sequence[Series]:
        """Return the metrics of the job that a request names; none of another namespace, user or unit, as at AWS."""
        dimensions = {one["Name"]: one["Value"] for one in request.get("Dimensions", ())}
        is_ours = request["Namespace"] == NAMESPACE and request.get("Unit", "None") == "None"
        if not is_ours or list(dimensions) != [DIMENSION]:
            return ()
        try:
            _, row = self._trainings.find(call, dimensions[DIMENSION])
        except ApiError:
            return ()
        return job_metrics(row, backend_named(row.backend)).series


def datapoints(
    found: Iterable[Series], start: float, end: float, period: int, statistics: Iterable[str]
) -> list[dict[str, float]]:
    """Return the statistics of each period that has values, the earliest first; times are seconds since 1970.

    >>> series = Series("loss", "algo-1", 0, "log")
    >>> series.add([4.0, 2.0], begin=60.0, end=61.0)
    >>> datapoints([series], 70, 120, 60, ["Average"])
    [{'Timestamp': 60.0, 'Average': 3.0}]

    As at CloudWatch, the first period begins at a whole one. NaN and infinite values are left out.
    """
    first = start - start % (period if period < _MINUTE else _MINUTE)
    values: dict[int, list[float]] = {}
    for series in found:
        for time, value in zip(series.times, series.values, strict=True):
            if first <= time < end and math.isfinite(value):
                values.setdefault(int((time - first) // period), []).append(value)
    return [
        {
            "Timestamp": float(first + number * period),
            **{name: _STATISTICS[name](values[number]) for name in statistics},
        }
        for number in sorted(values)
    ]


def _check(request: dict[str, Any]) -> None:
    period, span = request["Period"], request["EndTime"] - request["StartTime"]
    if period % _MINUTE and period not in _SHORT_PERIODS:
        raise ApiError("InvalidParameterValue", f"Period must be {_SHORT_PERIODS} or a multiple of {_MINUTE}")
    if span <= 0:
        raise ApiError("InvalidParameterCombination", "StartTime must be before EndTime")
    if not request.get("Statistics"):
        raise ApiError("InvalidParameterCombination", "Statistics must be given")
    if span / period > _MAX_POINTS:
        raise ApiError(
            "InvalidParameterCombination",
            f"up to {math.ceil(span / period)} datapoints were asked for, and {_MAX_POINTS} are the most: give a larger"
            " Period, or less time",
        )
