"""One job at one moment, as `top`, the page, the notebook and the lists show it. Pure: a `JobView` and a time in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from herringbone.show.cells import shown_number

if TYPE_CHECKING:
    from herringbone.events.view import JobView

_LOSSES = ("loss", "train_loss", "train/loss", "train:loss", "training_loss")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSummary:
    """A job at one moment, by its events; None and "" stand for what is not known.

    `eta` are the seconds until the end that a source has reported, less the time since then; `late` are the seconds
    since then, where that end is over. `metric` is the name of the metric whose newest value is `value`. `cpu` is in
    cores, `gpu` is the mean use of the job's GPUs from 0 to 1, memory is in bytes: sums over all hosts, in which a GPU
    and the `memory_total` of a machine count once, however many hosts share them. A job that is over has no ETA,
    throughput, use and alerts, and its memory is the most that its hosts, and its GPUs, have held.
    """

    done: float | None = None
    total: float | None = None
    unit: str = ""
    fraction: float | None = None
    eta: float | None = None
    late: float | None = None
    metric: str = ""
    value: float | None = None
    steps_per_second: float | None = None
    cpu: float | None = None
    memory: float | None = None
    memory_total: float | None = None
    gpu: float | None = None
    gpu_memory: float | None = None
    alerts: tuple[str, ...] = ()

    @property
    def done_text(self) -> str:
        """The part that is done of how much; "" where no source reports it.

        >>> JobSummary(done=120, total=480, unit="step").done_text, JobSummary(done=1, unit="epoch").done_text
        ('120 of 480 steps', '1 epoch')
        """
        if self.done is None:
            return ""
        unit = self.unit + "s" * (bool(self.unit) and self.unit[-1] != "s" and (self.total or self.done) != 1)
        return f"{shown_number(self.done)}{f' of {shown_number(self.total)}' if self.total else ''} {unit}".rstrip()


def summary_of(view: JobView, *, running: bool, now: float, metric: str | None = None) -> JobSummary:
    """Return the summary of a job; `metric` is the one that the user wants.

    >>> from herringbone.events.view import JobView
    >>> event = {"kind": "progress", "t": 10.0, "done": 5, "total": 20, "unit": "step", "eta": 30.0}
    >>> view = JobView().take_all([event])
    >>> summary = summary_of(view, running=True, now=60.0)
    >>> summary.fraction, summary.eta, summary.late
    (0.25, 0.0, 20.0)
    """
    members: dict[str, Any] = {}
    if (progress := view.progress) is not None:
        members = {name: getattr(progress, name) for name in ("done", "total", "unit", "fraction")}
        if running and progress.eta is not None:
            left = progress.eta - max(0.0, now - progress.time)
            members |= {"eta": max(0.0, left), "late": -left if left < 0 else None}
    if (name := chosen_metric((key[0] for key in view.series), metric)) is not None:
        members |= {"metric": name, "value": view.last(name)}
    if running:
        members |= {"steps_per_second": view.steps_per_second, "alerts": _alerts(view)}
    return JobSummary(**members | _resources(view, running=running))


def in_order(names: Iterable[str], wanted: str | None = None) -> list[str]:
    """Return the names of metrics, each once: the wanted one, then those that tell most about the training, losses.

    >>> in_order(["accuracy", "eval/loss", "lm_loss_total", "accuracy"])
    ['lm_loss_total', 'eval/loss', 'accuracy']
    """
    return sorted(dict.fromkeys(names), key=lambda name: (name != wanted, _order(name)))


def _order(name: str) -> int:
    low = name.lower()
    if low in _LOSSES:
        return 0
    return 1 if "loss" in low and "val" not in low else 2 if "loss" in low else 3


def chosen_metric(names: Iterable[str], wanted: str | None) -> str | None:
    """Return the metric that stands for a job: the one the user wants, else the first of `in_order`; None without any.

    >>> chosen_metric(["accuracy", "eval/loss"], None), chosen_metric(["accuracy"], None), chosen_metric(["a"], "b")
    ('eval/loss', 'accuracy', None)
    """
    first = next(iter(in_order(names, wanted)), None)
    return first if wanted in (None, first) else None


def _alerts(view: JobView) -> tuple[str, ...]:
    """Return what a running job suffers from now, in one word each."""
    newest = {kind: events[-1].t for kind, events in (("hang", view.hangs), ("straggler", view.stragglers)) if events}
    newest |= {one.fault: one.t for one in view.faults}
    # Its seconds are 0 once a device is used again.
    if view.idles and view.idles[-1].seconds:
        newest["idle"] = view.idles[-1].t
    moved = max((series.last_time for series in view.series.values()), default=0.0)
    # A metric after the hang says that the job goes on.
    if newest.get("hang", 0.0) < moved:
        newest.pop("hang", None)
    # Another attempt begins without all of it.
    began = view.restarts[-1].t if view.restarts else 0.0
    return tuple(kind for kind, time in newest.items() if time >= began)


def _resources(view: JobView, *, running: bool) -> dict[str, Any]:
    """Return use of processors, memory and GPUs over all hosts; None where no host measures it."""
    samples = view.samples.values()
    totals = {one.machine or one.host: one.memory_total for one in samples}
    whole = {"memory_total": _sum(totals.values())}
    if not running:
        return {"memory": _sum(view.host_peaks.values()), "gpu_memory": _sum(view.gpu_peaks.values()), **whole}
    gpus = {one.gpu_key(gpu): gpu for one in samples for gpu in one.gpus or ()}.values()
    uses = [gpu.use for gpu in gpus if gpu.use is not None]
    return {
        "cpu": _sum(one.cpu for one in samples),
        "memory": _sum(one.memory for one in samples),
        "gpu": sum(uses) / len(uses) if uses else None,
        "gpu_memory": _sum(gpu.memory for gpu in gpus),
        **whole,
    }


def _sum(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) if numbers else None
