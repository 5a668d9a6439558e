"""All values of a job's metrics, as columns: a million values are a few arrays, and a `Metric` is made when asked for.

files of events -> read_files -> Series per metric, rank and source -> Metrics
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timezone
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, overload

import msgspec

from herringbone.events.kinds import Batch, decode
from herringbone.events.series import Series, SeriesKey, SeriesTable
from herringbone.events.source import EventFile, each_line
from herringbone.events.tables import metrics_html
from herringbone.records.logs import Metric

if TYPE_CHECKING:
    from herringbone_contract.events.format import Event

# Bytes of every `metrics` event, and of few others: only these lines are decoded.
_MARK = b'"metrics"'


class Metrics(Sequence[Metric]):
    """The values of a job's metrics by time.

    >>> losses = [metric.value for metric in job.metrics() if metric.name == "loss"]     # doctest: +SKIP

    `series` has the same values as columns, one `Series` for each metric, rank and source: a plot of a million values
    reads `series[0].times` and `series[0].values`, which are arrays of numbers.
    """

    def __init__(self, series: Iterable[Series] = ()) -> None:
        self.series = tuple(each for each in series if each.values)
        # The number of the first value of each series, and the number after the last value of all.
        self._starts = [0, *accumulate(len(each.values) for each in self.series)]
        self._order: Sequence[int] | None = None

    @classmethod
    def of(cls, metrics: Iterable[Metric]) -> Metrics:
        """Return the same values as columns.

        >>> Metrics.of([]).names
        ()
        """
        found: dict[SeriesKey, Series] = {}
        for metric in metrics:
            key = (metric.name, metric.host, metric.rank, metric.source)
            if key not in found:
                found[key] = Series(*key)
            time = metric.time.timestamp()
            found[key].add([metric.value], begin=time, end=time, step=metric.step)
        return cls(found.values())

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the metrics, in the order in which they first appear."""
        return tuple(dict.fromkeys(each.name for each in self.series))

    def __len__(self) -> int:
        return self._starts[-1]

    @overload
    def __getitem__(self, index: int) -> Metric: ...
    @overload
    def __getitem__(self, index: slice) -> list[Metric]: ...
    def __getitem__(self, index: int | slice) -> Metric | list[Metric]:
        order = self._by_time()
        if isinstance(index, slice):
            return [self._at(number) for number in order[index]]
        return self._at(order[index])

    def __iter__(self) -> Iterator[Metric]:
        return map(self._at, self._by_time())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, (str, bytes)):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<Metrics: {len(self)} values of {', '.join(self.names) or 'no metric'}>"

    def _repr_html_(self) -> str:
        """Show the metrics in a notebook, each with its course."""
        return metrics_html(self.series)

    def numbered(self) -> Iterator[tuple[Series, int]]:
        """Yield the series and the position in it of each value, by time."""
        for number in self._by_time():
            which = bisect_right(self._starts, number) - 1
            yield self.series[which], number - self._starts[which]

    def _by_time(self) -> Sequence[int]:
        """Return the numbers of the values, counted over all series, in the order of their times."""
        if self._order is None:
            times: array[float] = array("d")
            for series in self.series:
                times.extend(series.times)
            # Stable: values of one moment keep the order of the series. One series is in its order already.
            together = range(len(times))
            self._order = together if len(self.series) == 1 else sorted(together, key=times.__getitem__)
        return self._order

    def _at(self, number: int) -> Metric:
        which = bisect_right(self._starts, number) - 1
        series, position = self.series[which], number - self._starts[which]
        step = series.steps[position] if series.steps else -1
        return Metric(
            series.name,
            series.values[position],
            datetime.fromtimestamp(series.times[position], timezone.utc),
            series.host,
            series.rank,
            None if step < 0 else step,
            series.source,
        )


# Typed, because that decodes in half the time of a dict. Not strict: numbers that are not finite are written as text.
_DECODER = msgspec.json.Decoder(Batch, strict=False)


class Columns(SeriesTable):
    """Collects the values of `metrics` events.

    >>> columns = Columns()
    >>> columns.take({"kind": "metrics", "t": 1.0, "name": "loss", "source": "log", "values": [0.5]})
    >>> columns.metrics[0].value
    0.5
    """

    @property
    def metrics(self) -> Metrics:
        """The values that were collected so far."""
        return Metrics(self.series.values())

    def take(self, event: Event) -> None:
        """Take an event; one of another kind, or a damaged one, changes nothing."""
        if event["kind"] == "metrics" and isinstance(batch := decode(event), Batch):
            self.add(batch)

    def take_lines(self, lines: bytes) -> None:
        """Take the `metrics` events among complete lines of a file."""
        for batch in each_line(_DECODER, b"\n".join(line for line in lines.split(b"\n") if _MARK in line)):
            self.add(batch)


def read_files(paths: Iterable[Path]) -> tuple[Metrics, bool]:
    """Return the metrics in files of events, and whether any of the files exists.

    >>> read_files([Path("job.events")])
    (<Metrics: 0 values of no metric>, False)
    """
    columns, exists = Columns(), False
    for path in paths:
        file = EventFile(path)
        while lines := file.read_lines():
            exists = True
            columns.take_lines(lines)
        file.close()
    return columns.metrics, exists
