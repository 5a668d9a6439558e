"""A job as its events show it: progress, metrics, resources, restarts. Pure: events in, one picture out.

`top`, the page, the report, the notebook and the trackers all read a `JobView`, so they show the same numbers.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from herringbone_contract.events.format import Event

# The step of a value whose source counts no steps.
NO_STEP = -1
# Steps that the throughput is computed over.
_RECENT_STEPS = 50
_RECENT_SAMPLES = 600
# Seconds since 1970 of a year that no job sees.
MAX_TIME = 1e11
_MAX_STEP = 1 << 40
# A script chooses names, ranks and the number of events; a view keeps so many of each, the newest of the events.
MAX_SERIES = 10_000
_MAX_RANKS = 10_000
_MAX_STATES = 1_000
_MAX_EVENTS = 200


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
        """Append values whose times are evenly spaced from `begin` to `end`; see `batches` for `step` and `by`.

        Raises `OverflowError`, `TypeError` or `ValueError` for numbers that fit no column, and adds nothing then.
        """
        first = NO_STEP if step is None or step < 0 else step
        by = by or 0
        if not (values and 0 <= begin <= end < MAX_TIME and first < _MAX_STEP and abs(by) < _MAX_STEP):
            raise ValueError(f"{len(values)} values from {begin} to {end}, step {step} by {by}: not those of a job")
        self.values.fromlist(values)
        self._added.append(len(values))
        self._begins.append(begin)
        self._ends.append(end)
        self._first_steps.append(first)
        self._bys.append(by)

    def take(self, event: Event) -> None:
        """Append the values of a `metrics` event."""
        values = [float(value) for value in event["values"]]
        end, begin = event["t"], event.get("since")
        self.add(values, begin=end if begin is None else begin, end=end, step=event.get("step"), by=event.get("by"))

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
            if count > 1:
                spacing = (end - begin) / (count - 1)
                times.extend([begin + spacing * index for index in range(count - 1)])
            times.append(end)
            if first == NO_STEP and not steps:
                continue
            if len(steps) + count < len(times):
                steps.extend([NO_STEP] * (len(times) - count))
            # Without a distance there is one value, or all are of one step.
            steps.extend(range(first, first + by * count, by) if by and first != NO_STEP else [first] * count)
        for column in (self._added, self._begins, self._ends, self._first_steps, self._bys):
            del column[:]

    @property
    def last_time(self) -> float:
        """The time of the newest value."""
        return self._ends[-1] if self._ends else self._times[-1]


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a job: `done` of `total` units, and the seconds until its end; None for what is unknown."""

    done: float
    total: float | None
    unit: str
    eta: float | None
    time: float

    @property
    def fraction(self) -> float | None:
        """The part that is done, from 0 to 1; None when the total is unknown."""
        return min(1.0, self.done / self.total) if self.total else None


class JobView:
    """Everything that the events of one job have said so far.

    >>> view = JobView()
    >>> view.take({"kind": "progress", "t": 12.0, "rank": 0, "done": 5, "total": 20, "unit": "step", "eta": 30.0})
    >>> view.progress.fraction, view.progress.eta
    (0.25, 30.0)
    """

    def __init__(self) -> None:
        self.state = ""
        # (time, state, why) of each change.
        self.states: deque[tuple[float, str, str]] = deque(maxlen=_MAX_STATES)
        self.progress: Progress | None = None
        self.series: dict[SeriesKey, Series] = {}
        # Seconds of the last steps, by rank; and the number of steps so far.
        self.step_seconds: dict[int, deque[float]] = {}
        self.step_counts: dict[int, int] = {}
        # The most bytes that a rank has held, by rank, and where: "cuda" or "cpu".
        self.memory_peaks: dict[int, tuple[int, str]] = {}
        # The last samples, by host.
        self.samples: dict[str, deque[dict[str, Any]]] = {}
        self.checkpoints: deque[Event] = deque(maxlen=_MAX_EVENTS)
        self.restarts: deque[Event] = deque(maxlen=_MAX_EVENTS)
        self.stragglers: deque[Event] = deque(maxlen=_MAX_EVENTS)
        self.hangs: deque[Event] = deque(maxlen=_MAX_EVENTS)
        self.stacks: deque[Event] = deque(maxlen=_MAX_EVENTS)
        self.timeline: Event | None = None
        self.bill = ""
        self.last_time: float | None = None

    def take(self, event: Event) -> None:
        """Add one event; a kind that this release does not know, or a damaged event, changes nothing."""
        handler = getattr(self, f"_take_{event['kind']}", None)
        if handler is None:
            return
        try:
            handler(event)
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
            return
        self.last_time = event["t"]

    def take_all(self, events: Iterable[Event]) -> JobView:
        """Add events in their order, and return this view."""
        for event in events:
            self.take(event)
        return self

    @property
    def steps_per_second(self) -> float | None:
        """The throughput of the slowest rank over its last steps; None before the first one."""
        means = [sum(seconds) / len(seconds) for seconds in self.step_seconds.values() if seconds]
        return 1 / max(means) if means and max(means) > 0 else None

    def last(self, name: str) -> float | None:
        """Return the newest value of a metric, whichever rank it is from; None if there is none."""
        named = [series for key, series in self.series.items() if key[0] == name and series.values]
        return max(named, key=lambda series: series.last_time).values[-1] if named else None

    def _take_state(self, event: Event) -> None:
        self.state = str(event["state"])
        self.states.append((event["t"], self.state, str(event.get("why") or "")))

    def _take_metrics(self, event: Event) -> None:
        rank, source = event.get("rank"), str(event.get("source", ""))
        key = (str(event["name"]), str(event.get("host", "")), None if rank is None else int(rank), source)
        series = self.series.get(key) or Series(*key)
        series.take(event)
        # Last: a damaged event makes no series, and names without end fill no memory.
        if key in self.series or len(self.series) < MAX_SERIES:
            self.series[key] = series

    def _take_progress(self, event: Event) -> None:
        total, eta = event.get("total"), event.get("eta")
        self.progress = Progress(
            float(event["done"]),
            None if total is None else float(total),
            str(event.get("unit") or ""),
            None if eta is None else float(eta),
            event["t"],
        )

    def _take_steps(self, event: Event) -> None:
        rank, count, seconds = int(event["rank"]), int(event["count"]), [float(each) for each in event["seconds"]]
        if rank in self.step_counts or len(self.step_counts) < _MAX_RANKS:
            self.step_counts[rank] = count
            self.step_seconds.setdefault(rank, deque(maxlen=_RECENT_STEPS)).extend(seconds)

    def _take_memory(self, event: Event) -> None:
        rank, peak = int(event["rank"]), (int(event["peak"]), str(event["device"]))
        if rank in self.memory_peaks or len(self.memory_peaks) < _MAX_RANKS:
            # Of several attempts, the one that held the most.
            self.memory_peaks[rank] = max(peak, self.memory_peaks.get(rank, peak))

    def _take_sample(self, event: Event) -> None:
        self.samples.setdefault(event["host"], deque(maxlen=_RECENT_SAMPLES)).append(event)

    def _take_checkpoint(self, event: Event) -> None:
        self.checkpoints.append(event)

    def _take_restart(self, event: Event) -> None:
        self.restarts.append(event)

    def _take_straggler(self, event: Event) -> None:
        self.stragglers.append(event)

    def _take_hang(self, event: Event) -> None:
        self.hangs.append(event)

    def _take_stacks(self, event: Event) -> None:
        self.stacks.append(event)

    def _take_timeline(self, event: Event) -> None:
        self.timeline = event

    def _take_bill(self, event: Event) -> None:
        self.bill = str(event["text"])
