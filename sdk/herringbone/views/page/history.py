"""Resources, throughput and timelines of a whole job, in bounded memory. Pure: events in, series out.

`JobView` keeps the newest samples, for views that show the present. A chart needs the whole job. A series that is full
drops each second value, so its memory stays the same however long the job runs.
"""

from __future__ import annotations

from herringbone.events.kinds import GPU_FIGURES, HOST_FIGURES, AnyKind, Gpu, RankUse, Sample, Steps, Timeline, decode
from herringbone.views.page.timeline import Timelines
from herringbone_contract.events.format import Event

_MAX_POINTS = 1_200
# Names come from hosts, and a broken one could invent any number of them.
_MAX_SERIES = 1_000
_RANK_FIGURES = ("cpu", "memory")


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
