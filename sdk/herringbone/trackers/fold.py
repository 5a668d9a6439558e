"""Turn a job's events into the points that a tracker stores: one name, one step, one value, one time. Pure.

    metrics     NAME of rank 0 (or of the whole job) keeps its name; of rank K, it is NAME/rank-K
    steps       step_seconds, at the number of the step
    restart     attempt, the number of the attempt that begins
    sample      system/cpu and so on, where they are asked for

Steps that repeat after a restart are sent again: both values were measured, and each has its own time. Values without a
step are counted from 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from herringbone.events.kinds import (
    GPU_FIGURES,
    HOST_FIGURES,
    AnyKind,
    Batch,
    Restart,
    Sample,
    Steps,
    decode,
    times_of,
)
from herringbone_contract.events.format import MAX_NAME_CHARS, Event, Point
from herringbone_contract.masking import printable

if TYPE_CHECKING:
    from herringbone.trackers.facts import JobFacts

BATCH = 1000
# More series than any tracker shows: a script that invents a name for each step must not fill the memory.
MAX_SERIES = 5_000
# MLflow's limit is 250, and a suffix may follow.
_NAME_CHARS = 230
_FIRST_HOST = ("", "algo-1")
_MLFLOW_REFUSES = re.compile(r"[^\w. /:-]")
# Members of a row that W&B and Trackio use themselves.
_RESERVED = ("step", "project", "run", "timestamp", "time", "metrics")

# name, host, rank, source
Key = tuple[str, str, "int | None", str]
# A series as the place of an export stores it: its key, its name in the tracker, and how many of its events were sent.
Row = list[Any]


class _Values(NamedTuple):
    key: Key
    values: Sequence[float]
    times: Sequence[float]
    # None where the source counts no steps.
    steps: Sequence[int] | None


class _Series:
    """One series: its name in the tracker, its events that were sent earlier and read now, and its values so far."""

    __slots__ = ("name", "read", "sent", "values")

    def __init__(self, name: str, sent: int) -> None:
        self.name, self.sent, self.read, self.values = name, sent, 0, 0


class Fold:
    """Points of the events that a tracker does not have yet; `rows` are those of an earlier export of the job.

    >>> fold = Fold("mlflow")
    >>> fold.take({"kind": "metrics", "t": 2.0, "rank": 1, "name": "loss", "step": 5, "values": [0.5]})
    [Point(time=2.0, name='loss/rank-1', value=0.5, step=5, rank=None, source='script', pace=None)]

    Events are counted by series, because each series comes from one file, while the order of files is not the same in
    every read. So an export that begins again takes events from the first one on, and skips what was sent.
    """

    batch = BATCH

    def __init__(self, tracker: str, rows: Iterable[Row] = (), *, system: bool = False) -> None:
        self._tracker = tracker
        self._system = system
        self._series: dict[Key, _Series] = {}
        self._names: set[str] = set()
        self._sources: set[str] = set()
        # Values of series beyond MAX_SERIES.
        self.left_out = 0
        for name, host, rank, source, shown, sent in rows:
            self._series[name, host, rank, source] = _Series(shown, sent)
            self._names.add(shown)
            self._sources.add(source)

    def take(self, event: Event) -> list[Point]:
        """Return the points of one event; none for other kinds, damaged events, and events that were sent earlier."""
        known = decode(event)
        found = () if known is None else _values_of(known, system=self._system)
        return [point for values in found for point in self._points(values)]

    def tick(self, now: float) -> tuple[()]:  # noqa: ARG002 - time alone makes no value
        return ()

    def end(self, facts: JobFacts) -> tuple[()]:  # noqa: ARG002 - the tracker itself gets the facts
        return ()

    def rows(self) -> list[Row]:
        """Return what to store once all points are sent."""
        return [[*key, series.name, max(series.sent, series.read)] for key, series in self._series.items()]

    def _points(self, found: _Values) -> list[Point]:
        series = self._series.get(found.key) or self._new_series(found.key)
        if series is None:
            self.left_out += len(found.values)
            return []
        begin = series.values
        series.values += len(found.values)
        series.read += 1
        if series.read <= series.sent:
            return []
        steps = range(begin, series.values) if found.steps is None else found.steps
        return [
            Point(time, series.name, value, step)
            for time, value, step in zip(found.times, found.values, steps, strict=True)
        ]

    def _new_series(self, key: Key) -> _Series | None:
        if len(self._series) >= MAX_SERIES:
            return None
        name, host, rank, source = key
        shown = clean_name(self._tracker, shown_name(name, host, rank))
        if any((name, host, rank, other) in self._series for other in self._sources):
            # The same metric from two sources, such as a log and a TensorBoard file.
            shown = clean_name(self._tracker, f"{shown}/{source}")
        number, unique = 2, shown
        while unique in self._names:
            number, unique = number + 1, f"{shown}.{number}"
        self._names.add(unique)
        self._sources.add(source)
        self._series[key] = series = _Series(unique, 0)
        return series


def shown_name(name: str, host: str, rank: int | None) -> str:
    """Return the name under which a tracker shows a metric of one rank.

    >>> shown_name("loss", "algo-1", 0), shown_name("loss", "algo-2", 3), shown_name("free", "algo-2", None)
    ('loss', 'loss/rank-3', 'free/algo-2')
    """
    if rank is not None:
        return name if rank == 0 else f"{name}/rank-{rank}"
    return name if host in _FIRST_HOST else f"{name}/{host}"


def clean_name(tracker: str, name: str) -> str:
    r"""Return a name that the tracker accepts.

    >>> clean_name("mlflow", "../loss (train)"), clean_name("wandb", "_loss"), clean_name("trackio", "step")
    ('loss _train_', 'loss', 'step_')
    """
    name = printable(name)[:_NAME_CHARS]
    if tracker == "mlflow":
        # MLflow refuses names that would be other paths, such as "a//b" and "../a".
        parts = _MLFLOW_REFUSES.sub("_", name).split("/")
        name = "/".join(part for part in parts if part not in ("", ".", ".."))
    if tracker in ("wandb", "trackio"):
        name = name.lstrip("_")
        name = f"{name}_" if name in _RESERVED else name
    return name or "metric"


def _values_of(event: AnyKind, *, system: bool) -> Iterator[_Values]:
    host = event.host[:MAX_NAME_CHARS]
    match event:
        case Batch():
            key = (event.name[:MAX_NAME_CHARS], host, event.rank, event.source[:MAX_NAME_CHARS])
            yield _Values(key, event.values, event.times, event.steps)
        case Steps():
            count, last = len(event.seconds), event.count
            times = times_of(count, event.t if event.since is None else event.since, event.t)
            key = ("step_seconds", host, event.rank, "steps")
            yield _Values(key, event.seconds, times, range(last - count + 1, last + 1))
        case Restart():
            yield _Values(("attempt", "", None, "restart"), [float(event.attempt)], [event.t], None)
        case Sample() if system:
            figures = {name: getattr(event, name) for name in HOST_FIGURES}
            for gpu in (event.gpus or ())[:64]:
                figures |= {f"gpu-{gpu.index}/{name}": getattr(gpu, name) for name in GPU_FIGURES}
            # As MLflow names system metrics of several machines: system/HOST/cpu.
            place = "system" if host in _FIRST_HOST else f"system/{host}"
            for name, value in figures.items():
                if value is not None:
                    yield _Values((f"{place}/{name}", "", None, "sample"), [value], [event.t], None)
