"""A job as its events show it: progress, metrics, resources, restarts. Pure: events in, one picture out.

`top`, the page, the report, the notebook and the trackers all read a `JobView`, so they show the same numbers.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from herringbone_contract.events.format import Event

# Steps that the throughput is computed over.
_RECENT_STEPS = 50
_RECENT_SAMPLES = 600


@dataclass(slots=True)
class Series:
    """All values of one metric of one rank: `times` in seconds since 1970, `steps` empty where none are counted."""

    name: str
    host: str
    rank: int | None
    source: str
    times: array[float] = field(default_factory=lambda: array("d"))
    values: array[float] = field(default_factory=lambda: array("d"))
    steps: array[int] = field(default_factory=lambda: array("q"))

    def take(self, event: Event) -> None:
        """Append the values of a `metrics` event."""
        values = [float(value) for value in event["values"]]
        end: float = event["t"]
        begin: float = event.get("since", end)
        spacing = (end - begin) / (len(values) - 1) if len(values) > 1 else 0.0
        self.times.extend(begin + spacing * index for index in range(len(values) - 1))
        self.times.append(end)
        self.values.extend(values)
        if (first := event.get("step")) is not None:
            by = event.get("by") or 1
            self.steps.extend(range(first, first + by * len(values), by))


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
        self.states: list[tuple[float, str, str]] = []
        self.progress: Progress | None = None
        # By name, host and rank.
        self.series: dict[tuple[str, str, int | None], Series] = {}
        # Seconds of the last steps, by rank; and the number of steps so far.
        self.step_seconds: dict[int, deque[float]] = {}
        self.step_counts: dict[int, int] = {}
        # The last samples, by host.
        self.samples: dict[str, deque[dict[str, Any]]] = {}
        self.checkpoints: list[Event] = []
        self.restarts: list[Event] = []
        self.stragglers: list[Event] = []
        self.hangs: list[Event] = []
        self.stacks: list[Event] = []
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
        newest = [(series.times[-1], series.values[-1]) for key, series in self.series.items() if key[0] == name]
        return max(newest)[1] if newest else None

    def _take_state(self, event: Event) -> None:
        self.state = event["state"]
        self.states.append((event["t"], event["state"], event.get("why") or ""))

    def _take_metrics(self, event: Event) -> None:
        key = (event["name"], event.get("host", ""), event.get("rank"))
        if key not in self.series:
            self.series[key] = Series(*key, event.get("source", ""))
        self.series[key].take(event)

    def _take_progress(self, event: Event) -> None:
        self.progress = Progress(
            event["done"], event.get("total"), event.get("unit") or "", event.get("eta"), event["t"]
        )

    def _take_steps(self, event: Event) -> None:
        rank = event["rank"]
        self.step_counts[rank] = event["count"]
        self.step_seconds.setdefault(rank, deque(maxlen=_RECENT_STEPS)).extend(event["seconds"])

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
        self.bill = event["text"]
