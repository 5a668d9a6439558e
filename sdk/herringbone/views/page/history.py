"""Resources, throughput and timelines of a whole job, in bounded memory. Pure: events in, series out.

`JobView` keeps the newest samples, for views that show the present. A chart needs the whole job. A series that is full
drops each second value, so its memory stays the same however long the job runs.
"""

from __future__ import annotations

from typing import Any

import msgspec

from herringbone.events.kinds import (
    GPU_FIGURES,
    HOST_FIGURES,
    AnyKind,
    Gpu,
    RankUse,
    Sample,
    Span,
    Spans,
    Steps,
    Timeline,
    decode,
)
from herringbone.show.thin import rounded
from herringbone_contract.events.format import Event
from herringbone_contract.masking import printable

_MAX_POINTS = 1_200
# Names come from hosts, and a broken one could invent any number of them.
_MAX_SERIES = 1_000
_RANK_FIGURES = ("cpu", "memory")
_MAX_SPANS = 5_000
# Of each step there are events of all ranks.
_MAX_STEPS = 3
_MAX_EVENTS = 1_000


class Track:
    """One figure over time: at most 1,200 points, each the mean of the values that it stands for.

    >>> track = Track()
    >>> for second in range(3): track.add(float(second), 2.0)
    >>> track.times, track.values
    ([0.0, 1.0, 2.0], [2.0, 2.0, 2.0])
    """

    __slots__ = ("_open", "_per_point", "times", "values")

    def __init__(self) -> None:
        self.times: list[float] = []
        self.values: list[float] = []
        self._per_point = 1
        # The point that still gets values: its values so far.
        self._open: list[float] = []

    def add(self, time: float, value: float) -> None:
        """Add a value; times do not go back."""
        if not self._open:
            self.times.append(time)
            self.values.append(value)
        self._open.append(value)
        self.times[-1] = time
        self.values[-1] = sum(self._open) / len(self._open)
        if len(self._open) == self._per_point:
            self._open = []
            if len(self.times) >= _MAX_POINTS:
                self._halve()

    def _halve(self) -> None:
        self.times = self.times[1::2]
        self.values = [(a + b) / 2 for a, b in zip(self.values[::2], self.values[1::2], strict=False)]
        self._per_point *= 2


class History:
    """The series of a job's hosts, GPUs and ranks.

    >>> history = History()
    >>> history.take({"kind": "sample", "t": 1.0, "host": "algo-1", "cpu": 1.5})
    >>> history.tracks[("algo-1", "", "cpu")].values
    [1.5]

    The keys of `tracks` are host, part of the host ("" for all of it, "gpu 0", "rank 3") and figure. `steps` has the
    steps per second of each rank.
    """

    def __init__(self) -> None:
        self.tracks: dict[tuple[str, str, str], Track] = {}
        self.steps: dict[int, Track] = {}
        self.gpu_names: dict[tuple[str, str], str] = {}
        self.timelines = Timelines()

    def take(self, event: Event) -> None:
        """Add one event; others than samples, step times and timelines change nothing."""
        if (known := decode(event)) is not None:
            self.add(known)

    def add(self, event: AnyKind) -> None:
        """Add an event that was decoded."""
        if isinstance(event, Sample):
            self._add(event, "", event, HOST_FIGURES)
            for gpu in event.gpus or ():
                part = f"gpu {gpu.index}"
                self._add(event, part, gpu, GPU_FIGURES)
                if len(self.gpu_names) < _MAX_SERIES:
                    self.gpu_names[event.host, part] = gpu.name[:100]
            for rank, use in (event.ranks or {}).items():
                self._add(event, f"rank {rank}", use, _RANK_FIGURES)
        elif isinstance(event, Steps):
            seconds = [value for value in event.seconds if value > 0]
            if seconds and event.rank is not None and (event.rank in self.steps or len(self.steps) < _MAX_SERIES):
                self.steps.setdefault(event.rank, Track()).add(event.t, len(seconds) / sum(seconds))
        elif isinstance(event, Timeline):
            self.timelines.add(event)

    def _add(self, sample: Sample, part: str, source: Sample | Gpu | RankUse, names: tuple[str, ...]) -> None:
        for name in names:
            key, value = (sample.host, part, name), getattr(source, name)
            if value is not None and (key in self.tracks or len(self.tracks) < _MAX_SERIES):
                self.tracks.setdefault(key, Track()).add(sample.t, value)


class Timelines:
    """The timelines of the newest steps; the events of all ranks of a step are one timeline.

    >>> timelines = Timelines()
    >>> for rank in (0, 1):
    ...     timelines.add(Timeline(t=12.0, step=7, since=10.0 + rank, spans=[Span("forward", 0, rank, 0.0, 1.0)]))
    >>> [span.end for span in timelines.newest().spans]
    [1.0, 2.0]
    """

    def __init__(self) -> None:
        self._steps: dict[int | None, list[Timeline]] = {}

    def add(self, event: Timeline) -> None:
        """Add the timeline of one rank."""
        events = self._steps.setdefault(event.step, [])
        if len(events) < _MAX_EVENTS:
            events.append(event)
        while len(self._steps) > _MAX_STEPS:
            del self._steps[next(iter(self._steps))]

    def newest(self) -> Timeline | None:
        """Return the newest step that most ranks have sent, as one event whose spans have one origin."""
        if not self._steps:
            return None
        # Of the last step some ranks may still be missing.
        step, events = max(reversed(list(self._steps.items())), key=lambda item: len(item[1]))
        first = min(event.since or 0.0 for event in events)
        bubbles = [event.bubble for event in events if event.bubble is not None]
        return Timeline(
            t=events[-1].t,
            step=step,
            spans=[span for event in events for span in _moved(event.spans, (event.since or 0.0) - first)],
            bubble=sum(bubbles) / len(bubbles) if bubbles else None,
            predicted=next((event.predicted for event in events if event.predicted), None),
        )


def timeline_data(event: Timeline | None) -> dict[str, Any] | None:
    """Return the step, its spans from time 0, its bubble and the predicted ones; None without a timeline.

    >>> spans = [Span("forward", 0, 0, 5.0, 6.0), Span("forward", 0, 1, 6.0, 7.0)]
    >>> timeline_data(Timeline(t=1.0, step=3, spans=spans))["measured"]
    {'spans': [('forward', 0, 0, 0.0, 1.0), ('forward', 0, 1, 1.0, 2.0)], 'bubble': 0.5}

    A span is [what, microbatch, partition, start, end]. The bubble is the part of the step in which a partition idles,
    on average; the event may name it.
    """
    measured = None if event is None else _part(event)
    if event is None or measured is None:
        return None
    predicted = None if event.predicted is None else _part(event.predicted)
    return {"step": event.step, "measured": measured, "predicted": predicted}


def _part(source: Timeline | Spans) -> dict[str, Any] | None:
    spans = [span for span in source.spans[:_MAX_SPANS] if span.end >= span.start]
    if not spans:
        return None if source.bubble is None else {"spans": [], "bubble": rounded(source.bubble)}
    moved = _moved(spans, -min(span.start for span in spans))
    return {
        "spans": [(printable(one.what)[:40], *msgspec.structs.astuple(one)[1:]) for one in moved],
        "bubble": rounded(_bubble(moved) if source.bubble is None else source.bubble),
    }


def _moved(spans: list[Span], by: float) -> list[Span]:
    return [
        Span(one.what, one.microbatch, one.partition, round(one.start + by, 6), round(one.end + by, 6)) for one in spans
    ]


def _bubble(spans: list[Span]) -> float | None:
    length = max(span.end for span in spans)
    busy = sum(span.end - span.start for span in spans)
    return max(0.0, 1 - busy / (length * len({span.partition for span in spans}))) if length > 0 else None
