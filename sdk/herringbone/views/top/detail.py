"""One job as the detail view of `herringbone top` shows it. Pure: a `JobView` and the last lines of the log in."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from herringbone.events.happenings import seen
from herringbone.events.kinds import RankUse
from herringbone.events.series import by_name, last_value
from herringbone.events.summary import in_order
from herringbone.events.view import JobView
from herringbone.show.cells import fitted, num_columns, shown_number, shown_percent, sparkline
from herringbone.system.sizes import shown_memory
from herringbone.system.times import shown_span
from herringbone.views.top.rows import Row, facts_of, progress_cell

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
    named = by_name(view.series.values())
    rows = []
    for name in in_order(named, wanted)[:MOST_METRICS]:
        last, shown = last_value(named[name]), named[name][0]
        step = "" if last.step is None else str(last.step)
        rows.append((name, shown_number(last.value), course(shown.values), step, shown.source))
    return (("METRIC", "LAST", "COURSE", "STEP", "SOURCE"), *rows) if rows else ()


def course(values: array[float]) -> str:
    """Return the sparkline of a column that may have a million values: of many, every n-th is enough."""
    return sparkline(list(values[:: 1 + len(values) // _MOST_POINTS]), _SPARKLINE_COLUMNS)


def _hosts(view: JobView) -> tuple[tuple[str, ...], ...]:
    rows = [
        (
            host,
            shown_number(sample.cpu),
            shown_memory(sample.memory),
            "  ".join(f"{shown_percent(gpu.use)} {shown_memory(gpu.memory)}" for gpu in sample.gpus or ()),
        )
        for host, sample in sorted(view.samples.items(), key=lambda item: (len(item[0]), item[0]))
    ]
    return (("HOST", "CPU", "MEMORY", "GPUS"), *rows) if rows else ()


def _ranks(view: JobView) -> tuple[tuple[str, ...], ...]:
    usage = {rank: use for sample in view.samples.values() for rank, use in (sample.ranks or {}).items()}
    rows = []
    for rank in sorted({*view.step_counts, *usage})[:MOST_RANKS]:
        used, seconds = usage.get(rank, RankUse()), view.step_seconds.get(rank)
        rows.append(
            (
                str(rank),
                str(view.step_counts.get(rank, "")),
                f"{sum(seconds) / len(seconds):.3g} s" if seconds else "",
                shown_number(used.cpu),
                shown_memory(used.memory),
                used.state or "",
            )
        )
    return (("RANK", "STEPS", "STEP TIME", "CPU", "MEMORY", "STATE"), *rows) if rows else ()


def _notes(view: JobView) -> tuple[str, ...]:
    """Return a line for each kind of thing that went wrong, its newest one, and for the newest checkpoint."""
    newest = {one.kind: one for one in seen(view) if one.kind != "state"}
    notes = [(one.time, f"{one.kind}: {one.text}") for one in newest.values()]
    if view.bill:
        notes.append((view.last_time or 0.0, f"bill: {view.bill}"))
    return tuple(f"{_clock(moment)}  {text}" for moment, text in sorted(notes))


def _clock(moment: float) -> str:
    return datetime.fromtimestamp(moment, timezone.utc).astimezone().strftime("%H:%M:%S")


def heading(row: Row) -> str:
    """Return the line about a job above its tables.

    >>> heading(Row(name="a", backend="local", state="Training", running=True, created=0.0, fraction=0.5, eta=90.0))
    'Training on local   ━━━━╌╌╌╌  50 %   ETA 1 min 30 s'
    """
    words = [f"{row.state} on {row.backend}", "" if row.fraction is None else progress_cell(row), *facts_of(row)]
    if row.seconds is not None:
        words.append(f"{'for' if row.running else 'took'} {shown_span(row.seconds)}")
    return "   ".join(word for word in (*words, row.place, row.trouble) if word)


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
