"""The values of a job's metrics as columns, and their summaries. Pure.

`Batch`, a decoded `metrics` event -> SeriesTable -> Series per metric, rank and source
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from herringbone.events.kinds import NO_STEP, Batch, steps_of, times_of

# A script chooses names and ranks; so many series are kept.
MAX_SERIES = 10_000

# By name, host, rank and source: HF's callback and a TensorBoard file may both have `loss`.
SeriesKey = tuple[str, str, int | None, str]


class Series:
    """All values of one metric of one rank from one source, in the order in which they came.

    >>> series = Series("loss", "algo-1", 0, "script")
    >>> series.add([0.5, 0.25, 0.125], begin=1.0, end=2.0, step=10, by=10)
    >>> list(series.values), list(series.times), list(series.steps)
    ([0.5, 0.25, 0.125], [1.0, 1.5, 2.0], [10, 20, 30])

    `times` are seconds since 1970. `steps` is as long as `values`, with NO_STEP for a value without a step; it is empty
    where the source counts none.
    """

    def __init__(self, name: str, host: str, rank: int | None, source: str) -> None:
        self.name, self.host, self.rank, self.source = name, host, rank, source
        self.values: array[float] = array("d")
        # Of each call of `add`: the number of values, their times and steps. Most callers want the last value, so the
        # columns of times and steps are made when they are first asked for.
        self._added: array[int] = array("q")
        self._begins: array[float] = array("d")
        self._ends: array[float] = array("d")
        self._first_steps: array[int] = array("q")
        self._bys: array[int] = array("q")
        self._times: array[float] = array("d")
        self._steps: array[int] = array("q")

    def add(
        self, values: list[float], *, begin: float, end: float, step: int | None = None, by: int | None = None
    ) -> None:
        """Append values whose times are evenly spaced from `begin` to `end`; see `batches` for `step` and `by`."""
        self.values.fromlist(values)
        self._added.append(len(values))
        self._begins.append(begin)
        self._ends.append(end)
        self._first_steps.append(NO_STEP if step is None or step < 0 else step)
        self._bys.append(by or 0)

    @property
    def times(self) -> array[float]:
        """The time of each value."""
        self._spread()
        return self._times

    @property
    def steps(self) -> array[int]:
        """The step of each value, NO_STEP for one without; empty where the source counts none."""
        self._spread()
        return self._steps

    def _spread(self) -> None:
        """Make the columns of times and steps as long as the values."""
        times, steps = self._times, self._steps
        added = zip(self._added, self._begins, self._ends, self._first_steps, self._bys, strict=True)
        for count, begin, end, first, by in added:
            times.extend(times_of(count, begin, end))
            numbers = steps_of(count, first, by)
            if numbers is None and not steps:
                continue
            if len(steps) + count < len(times):
                steps.extend([NO_STEP] * (len(times) - count))
            steps.extend([NO_STEP] * count if numbers is None else numbers)
        for column in (self._added, self._begins, self._ends, self._first_steps, self._bys):
            del column[:]

    @property
    def last_time(self) -> float:
        """The time of the newest value."""
        return self._ends[-1] if self._ends else self._times[-1]

    @property
    def order(self) -> int:
        """The rank, by which one series stands for those of all ranks; the first is one of the whole job."""
        return -1 if self.rank is None else self.rank


class SeriesTable:
    """Collects batches into series.

    >>> table = SeriesTable()
    >>> table.add(Batch(t=1.0, name="loss", values=[0.5]))
    >>> list(table.series)
    [('loss', '', None, '')]
    """

    def __init__(self) -> None:
        self.series: dict[SeriesKey, Series] = {}

    def add(self, batch: Batch) -> None:
        """Append the values of a batch to their series; values of more series than are kept are left out."""
        key = (batch.name, batch.host, batch.rank, batch.source)
        series = self.series.get(key)
        if series is None:
            if len(self.series) >= MAX_SERIES:
                return
            series = self.series[key] = Series(*key)
        series.add(batch.values, begin=batch.begin, end=batch.t, step=batch.step, by=batch.by)


@dataclass(frozen=True, slots=True)
class Value:
    """One value of a metric: `number` counts the values of the same rank, from 1; `step` is None without one."""

    value: float
    number: int
    time: datetime
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """All values of one metric of one job: how many, the last one, the smallest and the largest.

    Of equal values the lowest rank's first one counts, and of the last values the newest one.
    """

    count: int
    last: Value
    least: Value
    most: Value


def by_name(series: Iterable[Series]) -> dict[str, list[Series]]:
    """Return the series of each metric, the one that stands for all ranks first, in the order in which metrics appear.

    >>> by_name([Series("loss", "", 1, "log"), Series("loss", "", 0, "log")])["loss"][0].rank
    0
    """
    named: dict[str, list[Series]] = {}
    for one in series:
        named.setdefault(one.name, []).append(one)
    return {name: sorted(found, key=lambda one: one.order) for name, found in named.items()}


def newest(series: Iterable[Series]) -> Series:
    """Return the series with the newest value; of equally new ones, that of the lowest rank."""
    return max(series, key=lambda one: (one.last_time, -one.order))


def summarize(series: Iterable[Series]) -> dict[str, Summary]:
    """Return a summary of each metric by name, in the order in which the metrics first appear.

    >>> summarize(job.metrics().series)["loss"].least.value                 # doctest: +SKIP
    0.125
    """
    return {name: metric_summary(found) for name, found in by_name(series).items()}


def last_value(found: Iterable[Series]) -> Value:
    """Return the newest value of one metric, whichever rank it is from."""
    series = newest(found)
    return _value(series, len(series.values) - 1)


def _value(series: Series, position: int) -> Value:
    time = datetime.fromtimestamp(series.times[position], timezone.utc)
    step = series.steps[position] if series.steps else NO_STEP
    return Value(series.values[position], position + 1, time, None if step < 0 else step)


def metric_summary(found: Sequence[Series]) -> Summary:
    """Return the summary of one metric, of all its series."""

    ranges = [_range(series) for series in found]
    least = min(zip(found, ranges, strict=True), key=lambda pair: _or_nan_last(pair[1][0], math.inf))
    most = max(zip(found, ranges, strict=True), key=lambda pair: _or_nan_last(pair[1][1], -math.inf))
    return Summary(
        sum(len(series.values) for series in found),
        last_value(found),
        _value(least[0], _position(least[0], least[1][0])),
        _value(most[0], _position(most[0], most[1][1])),
    )


def _range(series: Series) -> tuple[float, float]:
    """Return the smallest and the largest value; NaN only if there is nothing else."""
    values: Sequence[float] = series.values
    # A sum is NaN if any value is, and costs a tenth of a comparison of each value.
    if math.isnan(sum(values)):
        values = [value for value in values if value == value] or [math.nan]
    return min(values), max(values)


def _or_nan_last(value: float, last: float) -> float:
    return last if math.isnan(value) else value


def _position(series: Series, value: float) -> int:
    return 0 if math.isnan(value) else series.values.index(value)
