"""Resources, throughput and timelines of a whole job, in bounded memory. Pure: events in, series out.

`JobView` keeps the newest samples, for views that show the present. A chart needs the whole job. A series that is full
drops each second value, so its memory stays the same however long the job runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from herringbone.show.thin import number
from herringbone.views.page.timeline import Timelines
from herringbone_contract.events.format import Event

_MAX_POINTS = 1_200
# Names come from hosts, and a broken one could invent any number of them.
_MAX_SERIES = 1_000
_HOST_FIGURES = ("cpu", "memory", "memory_total", "disk_read", "disk_write", "net_in", "net_out")
_GPU_FIGURES = ("use", "memory", "memory_total", "watts", "celsius")
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
        try:
            if event["kind"] == "sample":
                self._take_sample(event)
            elif event["kind"] == "steps":
                self._take_steps(event)
            elif event["kind"] == "timeline":
                self.timelines.take(event)
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
            # A damaged event.
            return

    def _take_sample(self, event: Event) -> None:
        host, time = str(event["host"]), float(event["t"])
        self._add(host, "", _figures(event, _HOST_FIGURES), time)
        for gpu in event.get("gpus") or ():
            part = f"gpu {int(gpu['index'])}"
            self._add(host, part, _figures(gpu, _GPU_FIGURES), time)
            if len(self.gpu_names) < _MAX_SERIES:
                self.gpu_names[host, part] = str(gpu.get("name", ""))[:100]
        for rank, state in (event.get("ranks") or {}).items():
            self._add(host, f"rank {int(rank)}", _figures(state, _RANK_FIGURES), time)

    def _take_steps(self, event: Event) -> None:
        rank = int(event["rank"])
        seconds = [value for item in event["seconds"] if (value := number(item)) is not None and value > 0]
        if seconds and (rank in self.steps or len(self.steps) < _MAX_SERIES):
            self.steps.setdefault(rank, Track()).add(float(event["t"]), len(seconds) / sum(seconds))

    def _add(self, host: str, part: str, figures: Iterator[tuple[str, float]], time: float) -> None:
        for name, value in figures:
            key = (host, part, name)
            if key not in self.tracks:
                if len(self.tracks) >= _MAX_SERIES:
                    continue
                self.tracks[key] = Track()
            self.tracks[key].add(time, value)


def _figures(values: Mapping[str, Any], names: tuple[str, ...]) -> Iterator[tuple[str, float]]:
    for name in names:
        value = number(values.get(name))
        if value is not None and value - value == 0:
            yield name, value
