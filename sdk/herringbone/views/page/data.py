"""A job as JSON values for the browser. Pure: a row, a `JobView` and a `History` in, plain values out.

Times are seconds since the job's `origin`, its start, so that the jobs of a comparison lie over each other. Texts are
plain: the browser shows them as text, never as HTML. Members that are not known are None.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from herringbone.events.comparison import as_tiles, compare, prediction_of
from herringbone.events.happenings import happenings, stacks_data
from herringbone.events.kinds import NO_STEP
from herringbone.events.series import Series, by_name, last_value
from herringbone.events.summary import JobSummary, in_order, summary_of
from herringbone.events.view import JobView
from herringbone.plan.shown import plan_rows
from herringbone.records.description import address, failure_of
from herringbone.records.index import JobRecord
from herringbone.records.remedies import remedy
from herringbone.records.state_lines import why_ended
from herringbone.show.cells import shown_eta, shown_number
from herringbone.show.thin import rounded, thinned
from herringbone.views.page.history import History, timeline_data
from herringbone_contract.errors import ContractError
from herringbone_contract.masking import printable

# A chart of a page is at most this many pixels wide.
BUCKETS = 500
# All charts of metrics together have at most this many points, so that a page of many ranks stays small.
MAX_POINTS = 60_000
MAX_LINES = 400
_MAX_TEXT = 2_000


@dataclass(frozen=True, slots=True)
class Fineness:
    """The number of points in a job's charts: `buckets` for a line, `points` for all lines of the metrics."""

    buckets: int = BUCKETS
    points: int = MAX_POINTS


def job_data(
    record: JobRecord,
    view: JobView,
    history: History,
    *,
    now: float,
    fineness: Fineness | None = None,
    place: str = "",
) -> dict[str, Any]:
    """Return one job for its page.

    >>> row = JobRecord(name="a", backend="local_process", plan="{}", created=100.0)
    >>> job_data(row, JobView(), History(), now=160.0)["name"]
    'a'

    `now` is the time of the look, in seconds since 1970. `place` is that of a job that waits in line, in words.
    """
    fineness = fineness or Fineness()
    origin = record.started or record.created
    summary = summary_of(view, running=not record.done, now=now)
    return {
        **row_data(record, summary, now=now, place=place),
        "use": {name: getattr(summary, name) for name in ("gpu", "memory", "memory_total", "gpu_memory")},
        "origin": origin,
        "model": address(record.model),
        "bill": _text(view.bill) or None,
        "prediction": _prediction(record, view),
        "metrics": _metrics(view.series.values(), origin, fineness),
        "throughput": _throughput(history, origin, fineness.buckets),
        "resources": _resources(history, origin, fineness.buckets),
        "happenings": [{"t": one.time, "kind": one.kind, "text": one.text} for one in happenings(record, view)],
        "stacks": stacks_data(view.stacks),
        "timeline": timeline_data(history.timelines.newest()),
        "failure": _failure(record),
        "plan": _plan(record),
        "hyperparameters": _hyperparameters(record),
    }


def row_data(
    record: JobRecord, summary: JobSummary, *, now: float, failure: str | None = None, place: str = ""
) -> dict[str, Any]:
    """Return a job's line in the list; `failure` is the JSON of its failure, which rows of a list do not have."""
    return {
        "name": record.name,
        "backend": record.backend,
        "status": record.status,
        "state": record.secondary_status,
        "done": record.done,
        "hosts": record.num_hosts,
        "created": record.created,
        "started": record.started,
        "ended": record.ended,
        "seconds": None if record.started is None else max(0.0, (record.ended or now) - record.started),
        "progress": None
        if summary.done is None
        else {
            **{name: rounded(getattr(summary, name)) for name in ("done", "total", "fraction", "eta", "late")},
            "text": _text(summary.done_text),
            "left": shown_eta(summary.eta, summary.late),
        },
        "rate": rounded(summary.steps_per_second),
        "loss": _loss(summary),
        "why": printable(place or why_ended(record, record.failure or failure)),
        "alerts": list(summary.alerts),
    }


def _loss(summary: JobSummary) -> dict[str, Any] | None:
    """Return name and newest value of the metric that stands for the job."""
    if not summary.metric:
        return None
    return {
        "name": _text(summary.metric),
        "value": rounded(summary.value),
        "text": shown_number(summary.value),
    }


def _metrics(series: Iterable[Series], origin: float, fineness: Fineness) -> list[dict[str, Any]]:
    """Return the metrics by name, the loss first, each with a line per host and rank."""
    named = by_name(series)
    chosen = [
        (name, sorted(named[name], key=lambda one: (one.host, one.order, one.source))) for name in in_order(named)
    ]
    lines = sum(len(found) for _, found in chosen)
    buckets = max(20, min(fineness.buckets, fineness.points // (2 * max(1, min(lines, MAX_LINES)))))
    metrics, left = [], MAX_LINES
    for name, found in chosen:
        shown = found[:left]
        left -= len(shown)
        if not shown:
            break
        metrics.append(
            {
                "name": _text(name),
                "count": len(found),
                "last": shown_number(last_value(found).value),
                "lines": [_metric_line(one, origin, buckets) for one in shown],
            }
        )
    return metrics


def _metric_line(one: Series, origin: float, buckets: int) -> dict[str, Any]:
    steps = one.steps if one.steps and NO_STEP not in one.steps else None
    places = thinned(one.values, buckets)
    odd = next((at for at in places if rounded(one.values[at]) is None), None)
    return {
        "host": _text(one.host),
        "rank": one.rank,
        "source": _text(one.source),
        "count": len(one.values),
        "x": [round(one.times[at] - origin, 3) for at in places],
        "steps": None if steps is None else [steps[at] for at in places],
        "y": [rounded(one.values[at]) for at in places],
        # The first value that is not finite: most often the moment at which the training broke.
        "odd": None
        if odd is None
        else {"text": str(one.values[odd]), "at": odd, "step": None if steps is None else steps[odd]},
    }


def _line(times: Sequence[float], values: Sequence[float], origin: float, buckets: int) -> dict[str, Any]:
    places = thinned(values, buckets)
    return {"x": [round(times[at] - origin, 1) for at in places], "y": [rounded(values[at]) for at in places]}


def _throughput(history: History, origin: float, buckets: int) -> list[dict[str, Any]]:
    ranks = sorted(history.steps)[:MAX_LINES]
    coarse = max(20, min(buckets, MAX_POINTS // (2 * max(1, len(ranks)))))
    return [
        {"rank": rank, **_line(history.steps[rank].times, history.steps[rank].values, origin, coarse)} for rank in ranks
    ]


def _resources(history: History, origin: float, buckets: int) -> list[dict[str, Any]]:
    """Return the hosts, each with its parts (the host itself, GPUs, ranks) and their figures."""
    hosts: dict[str, dict[str, dict[str, Any]]] = {}
    coarse = max(20, min(buckets, 40_000 // max(1, 2 * len(history.tracks))))
    for (host, part, figure), track in history.tracks.items():
        hosts.setdefault(host, {}).setdefault(part, {})[figure] = _line(track.times, track.values, origin, coarse)
    return [
        {
            "host": _text(host),
            "parts": [
                {"part": part, "name": _text(history.gpu_names.get((host, part), "")), "figures": figures}
                for part, figures in sorted(parts.items(), key=lambda item: _part_order(item[0]))
            ],
        }
        for host, parts in sorted(hosts.items(), key=lambda item: (len(item[0]), item[0]))
    ]


def _part_order(part: str) -> tuple[str, int]:
    kind, _, index = part.partition(" ")
    return kind, int(index or 0)


def _failure(record: JobRecord) -> dict[str, Any] | None:
    try:
        failure = failure_of(record)
    except ContractError as error:
        return {"head": str(error), "text": "", "remedy": "", "rank": None, "host": None}
    if failure is None:
        return None
    advice = remedy(failure, record.plan_dict) or failure.advice
    return {
        "head": failure.head,
        "text": failure.render(20_000),
        "remedy": printable(advice),
        "rank": failure.rank,
        "host": failure.host,
    }


def _plan(record: JobRecord) -> list[tuple[str, str]]:
    try:
        return [(label, printable(text, "\n")) for label, text in plan_rows(record.plan_dict)]
    # A plan of another release has other members.
    except (KeyError, TypeError, ValueError, AttributeError):
        return [("plan", "of another release of Herringbone")] if record.plan_dict else []


def _prediction(record: JobRecord, view: JobView) -> list[dict[str, str | None]]:
    """Return predicted and measured figures of a job that was measured before; [] for all others."""
    prediction = prediction_of(record.plan_dict)
    return [] if prediction is None else as_tiles(compare(prediction, view))


def _hyperparameters(record: JobRecord) -> list[tuple[str, str]]:
    values = record.plan_dict.get("hyperparameters")
    if not isinstance(values, Mapping):
        return []
    return [(_text(str(name)), _text(str(value))) for name, value in sorted(values.items())]


def _text(text: object) -> str:
    return printable(str(text))[:_MAX_TEXT]
