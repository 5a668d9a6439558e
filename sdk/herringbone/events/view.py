"""A job as its events show it: progress, metrics, resources, restarts. Pure: events in, one picture out.

`top`, the page, the report, the notebook and the trackers all read a `JobView`, so they show the same numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from herringbone.events import kinds
from herringbone.events.kinds import AnyKind, Progress, Sample
from herringbone.events.series import Series, SeriesKey, SeriesTable, newest
from herringbone_contract.events.format import Event

# Steps that the throughput is computed over.
_RECENT_STEPS = 50
# A script chooses ranks and the number of events; a view keeps so many of each, the newest of the events.
_MAX_RANKS = 10_000
_MAX_STATES = 1_000
_MAX_EVENTS = 200
_LISTS = {
    kinds.State: "states",
    kinds.Checkpoint: "checkpoints",
    kinds.Removed: "removals",
    kinds.Restart: "restarts",
    kinds.Stop: "stops",
    kinds.Straggler: "stragglers",
    kinds.Hang: "hangs",
    kinds.Fault: "faults",
    kinds.Idle: "idles",
    kinds.Stacks: "stacks",
}


class JobView:
    """Everything that the events of one job have said so far.

    >>> view = JobView()
    >>> view.take({"kind": "progress", "t": 12.0, "rank": 0, "done": 5, "total": 20, "unit": "step", "eta": 30.0})
    >>> view.progress.fraction, view.progress.eta
    (0.25, 30.0)
    """

    def __init__(self) -> None:
        self.states: deque[kinds.State] = deque(maxlen=_MAX_STATES)
        self.progress: Progress | None = None
        self._table = SeriesTable()
        # Seconds of the last steps, by rank; and the number of steps so far.
        self.step_seconds: dict[int, deque[float]] = {}
        self.step_counts: dict[int, int] = {}
        # The most bytes that a rank has held, by rank, and where: "cuda" or "cpu".
        self.memory_peaks: dict[int, tuple[int, str]] = {}
        # The newest sample, and the most bytes so far, by host; and by GPU.
        self.samples: dict[str, Sample] = {}
        self.host_peaks: dict[str, float] = {}
        self.gpu_peaks: dict[tuple[str, int | str], float] = {}
        self.checkpoints: deque[kinds.Checkpoint] = deque(maxlen=_MAX_EVENTS)
        self.removals: deque[kinds.Removed] = deque(maxlen=_MAX_EVENTS)
        self.restarts: deque[kinds.Restart] = deque(maxlen=_MAX_EVENTS)
        self.stops: deque[kinds.Stop] = deque(maxlen=_MAX_EVENTS)
        self.stragglers: deque[kinds.Straggler] = deque(maxlen=_MAX_EVENTS)
        self.hangs: deque[kinds.Hang] = deque(maxlen=_MAX_EVENTS)
        self.faults: deque[kinds.Fault] = deque(maxlen=_MAX_EVENTS)
        self.idles: deque[kinds.Idle] = deque(maxlen=_MAX_EVENTS)
        self.stacks: deque[kinds.Stacks] = deque(maxlen=_MAX_EVENTS)
        self.bill = ""
        self.last_time: float | None = None

    @property
    def state(self) -> str:
        """The newest secondary status; "" before the first one."""
        return self.states[-1].state if self.states else ""

    @property
    def series(self) -> dict[SeriesKey, Series]:
        """The values of the metrics, of each rank and source."""
        return self._table.series

    def take(self, event: Event) -> None:
        """Add one event; a kind that this release does not know, or a damaged event, changes nothing."""
        if (known := kinds.decode(event)) is not None:
            self.add(known)

    def take_all(self, events: Iterable[Event]) -> JobView:
        """Add events in their order, and return this view."""
        for event in events:
            self.take(event)
        return self

    def add(self, event: AnyKind) -> None:
        """Add an event that was decoded."""
        self.last_time = event.t
        match event:
            case kinds.Batch():
                self._table.add(event)
            case Progress():
                self.progress = event
            case kinds.Steps():
                self._add_steps(event)
            case kinds.Memory(rank=int(rank)) if rank in self.memory_peaks or len(self.memory_peaks) < _MAX_RANKS:
                # Of several attempts, the one that held the most.
                peak = (event.peak, event.device)
                self.memory_peaks[rank] = max(peak, self.memory_peaks.get(rank, peak))
            case Sample():
                self._add_sample(event)
            case kinds.Bill():
                self.bill = event.text
            case _ if type(event) in _LISTS:
                getattr(self, _LISTS[type(event)]).append(event)

    @property
    def steps_per_second(self) -> float | None:
        """The throughput of the slowest rank over its last steps; None before the first one."""
        means = [sum(seconds) / len(seconds) for seconds in self.step_seconds.values() if seconds]
        return 1 / max(means) if means and max(means) > 0 else None

    def last(self, name: str) -> float | None:
        """Return the newest value of a metric, whichever rank it is from; None if there is none."""
        named = [series for key, series in self.series.items() if key[0] == name]
        return newest(named).values[-1] if named else None

    def _add_steps(self, event: kinds.Steps) -> None:
        rank = event.rank
        if rank is not None and (rank in self.step_counts or len(self.step_counts) < _MAX_RANKS):
            self.step_counts[rank] = event.count
            self.step_seconds.setdefault(rank, deque(maxlen=_RECENT_STEPS)).extend(event.seconds)

    def _add_sample(self, event: Sample) -> None:
        self.samples[event.host] = event
        if event.memory is not None:
            self.host_peaks[event.host] = max(event.memory, self.host_peaks.get(event.host, 0.0))
        for gpu in event.gpus or ():
            key = event.gpu_key(gpu)
            if gpu.memory is not None and (key in self.gpu_peaks or len(self.gpu_peaks) < _MAX_RANKS):
                self.gpu_peaks[key] = max(gpu.memory, self.gpu_peaks.get(key, 0.0))
