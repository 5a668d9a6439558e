"""One job at one moment, as `top`, the page, the notebook and the lists show it. Pure: a `JobView` and a time in."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from herringbone.show.thin import number

if TYPE_CHECKING:
    from herringbone.events.view import JobView

_LOSSES = ("loss", "train_loss", "train/loss", "train:loss", "training_loss")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSummary:
    """A job at one moment, by its events; None and "" stand for what is not known.

    `eta` are the seconds until the end that a source has reported, less the time since then; `late` are the seconds
    since then, where that end is over. `metric` is the name of the metric whose newest value is `value`. `cpu` is in
    cores, `gpu` is the mean use of the job's GPUs from 0 to 1, memory is in bytes: sums over all hosts. A job that is
    over has no ETA, throughput, resources and alerts.
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
    gpu: float | None = None
    gpu_memory: float | None = None
    alerts: tuple[str, ...] = ()


def summary_of(view: JobView, *, running: bool, now: float, metric: str | None = None) -> JobSummary:
    """Return the summary of a job; `metric` is the one that the user wants.

    >>> from herringbone.events.view import JobView
    >>> event = {"kind": "progress", "t": 10.0, "done": 5, "total": 20, "unit": "step", "eta": 30.0}
    >>> view = JobView().take_all([event])
    >>> [(one.fraction, one.eta, one.late) for one in (summary_of(view, running=True, now=now) for now in (12.0, 60.0))]
    [(0.25, 28.0, None), (0.25, 0.0, 20.0)]
    """
    members: dict[str, Any] = {}
    if (progress := view.progress) is not None:
        members = {"done": number_of(progress.done), "total": number_of(progress.total), "unit": str(progress.unit)}
        members["fraction"] = number_of(progress.fraction)
        if running and (eta := number_of(progress.eta)) is not None:
            left = eta - max(0.0, now - progress.time)
            members |= {"eta": max(0.0, left), "late": -left if left < 0 else None}
    if (name := chosen_metric((key[0] for key in view.series if isinstance(key[0], str)), metric)) is not None:
        members |= {"metric": name, "value": view.last(name)}
    if running:
        members |= {"steps_per_second": view.steps_per_second, "alerts": _alerts(view), **resources(view)}
    return JobSummary(**members)


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
    newest = {
        kind: events[-1]["t"] for kind, events in (("hang", view.hangs), ("straggler", view.stragglers)) if events
    }
    moved = max((series.last_time for series in view.series.values() if series.values), default=0.0)
    # A metric after the hang says that the job goes on.
    if newest.get("hang", 0.0) < moved:
        newest.pop("hang", None)
    return tuple(newest)


def resources(view: JobView) -> dict[str, float | None]:
    """Return use of processors, memory and GPUs at this moment, over all hosts; None where no host measures it."""
    samples = [samples[-1] for samples in view.samples.values() if samples]
    gpus = [gpu for sample in samples for gpu in gpus_of(sample)]
    uses = [use for gpu in gpus if (use := number_of(gpu.get("use"))) is not None]
    return {
        "cpu": _sum(sample.get("cpu") for sample in samples),
        "memory": _sum(sample.get("memory") for sample in samples),
        "gpu": sum(uses) / len(uses) if uses else None,
        "gpu_memory": _sum(gpu.get("memory") for gpu in gpus),
    }


def gpus_of(sample: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the GPUs of a sample; what is no GPU is left out."""
    gpus = sample.get("gpus")
    return [gpu for gpu in gpus if isinstance(gpu, dict)] if isinstance(gpus, list) else []


def _sum(values: Iterable[object]) -> float | None:
    numbers = [number for value in values if (number := number_of(value)) is not None]
    return sum(numbers) if numbers else None


def number_of(value: object) -> float | None:
    """Return a number of an event; None for anything else, which only a damaged event or a script has there."""
    found = number(value)
    return found if found is not None and math.isfinite(found) else None
