"""One job as the detail view of `herringbone top` shows it. Pure: a `JobView` and the last lines of the log in."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from herringbone.events.summary import gpus_of, in_order, number_of
from herringbone.events.view import NO_STEP
from herringbone.show.cells import fitted, num_columns, shown_amount, shown_eta, shown_number, shown_percent, sparkline
from herringbone.system.times import shown_span
from herringbone.views.top.rows import Row, progress_cell

if TYPE_CHECKING:
    from herringbone.events.view import JobView, Series

# Bounds of what a screen shows, whatever a script has logged.
MOST_METRICS = 50
MOST_RANKS = 64
MOST_LINES = 200
_SPARKLINE_COLUMNS = 40
_MOST_POINTS = 2_000
_MOST_CELL_COLUMNS = 48


@dataclass(frozen=True, slots=True)
class Detail:
    """Tables of texts, each with its titles in front, and the last lines of the log."""

    row: Row
    metrics: tuple[tuple[str, ...], ...]
    hosts: tuple[tuple[str, ...], ...]
    ranks: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]
    lines: tuple[str, ...]


def detail_of(row: Row, view: JobView, lines: Iterable[str], *, metric: str | None = None) -> Detail:
    """Return the detail view of a job whose row is known."""
    return Detail(
        row=row,
        metrics=_metrics(view, metric),
        hosts=_hosts(view),
        ranks=_ranks(view),
        notes=_notes(view),
        lines=tuple(lines)[-MOST_LINES:],
    )


def _metrics(view: JobView, wanted: str | None) -> tuple[tuple[str, ...], ...]:
    """Return a row for each metric: of several ranks that log the same one, the lowest rank's course."""
    by_name: dict[str, Series] = {}
    for series in view.series.values():
        if not isinstance(series.name, str):
            continue
        if series.name not in by_name or _rank(series) < _rank(by_name[series.name]):
            by_name[series.name] = series
    names = in_order(by_name, wanted)[:MOST_METRICS]
    rows = [
        (
            name,
            shown_number(view.last(name)),
            course(by_name[name].values),
            "".join(str(step) for step in by_name[name].steps[-1:] if step != NO_STEP),
            by_name[name].source,
        )
        for name in names
    ]
    return (("METRIC", "LAST", "COURSE", "STEP", "SOURCE"), *rows) if rows else ()


def course(values: array[float]) -> str:
    """Return the sparkline of a column that may have a million values: of many, every n-th is enough."""
    return sparkline(list(values[:: 1 + len(values) // _MOST_POINTS]), _SPARKLINE_COLUMNS)


def _rank(series: Series) -> int:
    return -1 if series.rank is None else series.rank


def _hosts(view: JobView) -> tuple[tuple[str, ...], ...]:
    rows = []
    for host, samples in sorted(view.samples.items(), key=lambda item: (len(item[0]), item[0])):
        if not samples:
            continue
        sample = samples[-1]
        rows.append(
            (
                host,
                shown_number(number_of(sample.get("cpu"))),
                shown_amount(number_of(sample.get("memory"))),
                "  ".join(
                    f"{shown_percent(number_of(gpu.get('use')))} {shown_amount(number_of(gpu.get('memory')))}"
                    for gpu in gpus_of(sample)
                ),
            )
        )
    return (("HOST", "CPU", "MEMORY", "GPUS"), *rows) if rows else ()


def _ranks(view: JobView) -> tuple[tuple[str, ...], ...]:
    usage: dict[int, dict[str, Any]] = {}
    for samples in view.samples.values():
        ranks = samples[-1].get("ranks") if samples else None
        if isinstance(ranks, dict):
            usage |= {int(rank): used for rank, used in ranks.items() if rank.isdecimal() and isinstance(used, dict)}
    rows = []
    for rank in sorted(rank for rank in {*view.step_counts, *usage} if isinstance(rank, int))[:MOST_RANKS]:
        used, seconds = usage.get(rank, {}), view.step_seconds.get(rank)
        mean = sum(seconds) / len(seconds) if seconds else None
        rows.append(
            (
                str(rank),
                str(view.step_counts.get(rank, "")),
                "" if mean is None else f"{mean:.3g} s",
                shown_number(number_of(used.get("cpu"))),
                shown_amount(number_of(used.get("memory"))),
                str(used.get("state") or ""),
            )
        )
    return (("RANK", "STEPS", "STEP TIME", "CPU", "MEMORY", "STATE"), *rows) if rows else ()


def _notes(view: JobView) -> tuple[str, ...]:
    """Return a line for each kind of thing that went wrong, its newest one, and for the newest checkpoint."""
    wrong = (("restart", view.restarts), ("straggler", view.stragglers), ("hang", view.hangs))
    newest = [(name, [*events][-1]) for name, events in (*wrong, ("checkpoint", view.checkpoints)) if events]
    notes = [
        (event["t"], f"{name}: {event.get('text') or event.get('why') or event.get('path') or _subject(event)}")
        for name, event in newest
    ]
    if view.bill:
        notes.append((view.last_time or 0.0, f"bill: {view.bill}"))
    return tuple(f"{_clock(moment)}  {text}" for moment, text in sorted(notes))


def _subject(event: dict[str, Any]) -> str:
    seconds, median = number_of(event.get("seconds")), number_of(event.get("median"))
    times = "" if seconds is None or median is None else f", {seconds:.3g} s a step where the median is {median:.3g} s"
    return f"rank {event.get('rank')}{times}"


def _clock(moment: float) -> str:
    try:
        return datetime.fromtimestamp(moment, timezone.utc).astimezone().strftime("%H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return "?"


def heading(row: Row) -> str:
    """Return the line about a job above its tables.

    >>> heading(Row(name="a", backend="local", state="Training", running=True, created=0.0, fraction=0.5, eta=90.0))
    'Training on local   ━━━━╌╌╌╌  50 %   ETA 1 min 30 s'
    """
    words = [f"{row.state} on {row.backend}", progress_cell(row)]
    if row.total is not None and row.done is not None:
        words.append(f"{row.done:g} of {row.total:g} {row.unit}".rstrip())
    if row.eta is not None:
        words.append(f"ETA {shown_eta(row.eta, row.late)}")
    if row.steps_per_second is not None:
        words.append(f"{shown_number(row.steps_per_second)} steps/s")
    if row.seconds is not None:
        words.append(f"{'for' if row.running else 'took'} {shown_span(row.seconds)}")
    return "   ".join(word for word in (*words, row.trouble) if word)


def lines_of(table: Sequence[tuple[str, ...]], width: int) -> list[str]:
    """Return a line for each row of a table, the columns aligned; no line has more than `width` columns.

    >>> lines_of([("HOST", "CPU"), ("algo-1", "3.2")], 80)
    ['HOST    CPU', 'algo-1  3.2']
    """
    cells = [[fitted(cell, _MOST_CELL_COLUMNS) for cell in row] for row in table]
    widths = [max(map(num_columns, column)) for column in zip(*cells, strict=True)]
    padded = (
        "  ".join(cell + " " * (at - num_columns(cell)) for cell, at in zip(row, widths, strict=True)) for row in cells
    )
    return [fitted(line.rstrip(), width) for line in padded]
