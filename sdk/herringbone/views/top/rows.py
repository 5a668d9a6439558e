"""A job as one row of `herringbone top`. Pure: the job's row in the index and its `JobView` in, a `Row` out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from herringbone.events.summary import JobSummary, summary_of
from herringbone.records.state_lines import shown_state
from herringbone.show.cells import bar, fitted, num_columns, shown_eta, shown_number, shown_percent
from herringbone.system.sizes import shown_memory
from herringbone.system.texts import NONE, shortened

if TYPE_CHECKING:
    from herringbone.events.view import JobView
    from herringbone.records.index import JobRecord

_BAR_COLUMNS = 8
NAME, STATE, METRIC, TRIAL, LAST_LINE = "NAME", "STATE", "METRIC", "TRIAL", "LAST LINE"
_LEAST_NAME, _MOST_NAME = 16, 40
_LEAST_LAST_LINE = 16
_MOST_METRIC = 16
_MOST_TRIAL = 48
# So wide that the columns stay where they are while the numbers change.
_LEAST_WIDTHS = {"ETA": 10, METRIC: 9, "STEPS/S": 7, "GPU": 5, "CPU": 5, "MEMORY": 9}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(JobSummary):
    """One job, or one search, at one moment; None and "" stand for what is not known.

    `trouble` says why the row may be older than it looks, `place` is that of a job that waits in line. A job that is a
    trial has the name of its search in `tuning`, and its number and values in `trial`; the best trial is in `trial` of
    a search. `group` is when the search was created.
    """

    name: str
    backend: str
    state: str
    running: bool
    created: float
    seconds: float | None = None
    last_line: str = ""
    place: str = ""
    trouble: str = ""
    kind: str = "job"
    tuning: str = ""
    trial: str = ""
    group: float | None = None

    @property
    def key(self) -> str:
        """A name that no other row has: a job may be called as a search is."""
        return self.name if self.kind == "job" else f"{self.kind} job {self.name}"

    @property
    def line(self) -> str:
        """The most important of the texts for which there is one line."""
        return self.trouble or self.place or self.last_line

    def as_json(self) -> dict[str, Any]:
        """Return the row as JSON values: numbers that are not finite are words."""
        return {
            name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
            # What identifies the job comes first.
            for name, value in sorted(asdict(self).items(), key=lambda item: item[0] in JobSummary.__slots__)
            if name != "group"
        }


def row_of(
    record: JobRecord, view: JobView, *, now: float, last_line: str = "", metric: str | None = None, trouble: str = ""
) -> Row:
    """Return the row of a job: its summary, its state and its times.

    >>> from herringbone.events.view import JobView
    >>> from herringbone.records.index import JobRecord
    >>> record = JobRecord(name="digits-1", backend="local", plan="{}", created=0.0, secondary_status="Training")
    >>> event = {"kind": "progress", "t": 10.0, "done": 5, "total": 20, "unit": "step", "eta": 30.0}
    >>> row = row_of(record, JobView().take_all([event]), now=12.0)
    >>> row.state, row.fraction, row.eta, row.steps_per_second
    ('Training', 0.25, 28.0, None)
    """
    running = not record.done
    summary = asdict(summary_of(view, running=running, now=now, metric=metric))
    return Row(
        name=record.name,
        backend=record.backend,
        state=shown_state(record),
        running=running,
        created=record.created,
        seconds=None if record.started is None else (record.ended or now) - record.started,
        last_line=last_line,
        trouble=trouble,
        **summary,
    )


def in_order(rows: Iterable[Row]) -> list[Row]:
    """Return rows as they are shown: what runs first, and the newest first; a search is above its trials."""
    return sorted(rows, key=lambda row: (not row.running, -_age(row), row.tuning or row.name, *_inner(row)))


def _age(row: Row) -> float:
    return row.created if row.group is None else row.group


def _inner(row: Row) -> tuple[bool, float, str]:
    return row.kind == "job", -row.created, row.name


def matches(row: Row, words: str) -> bool:
    """Report whether a row has every word in its name, state or backend, in letters of any case.

    >>> matches(Row(name="digits-1", backend="local", state="Training", running=True, created=0.0), "DIG train")
    True
    """
    text = f"{row.name} {row.state} {row.backend} {row.tuning}".lower()
    return all(word in text for word in words.lower().split())


class Table(NamedTuple):
    """A table that fits a terminal: `widths` are those of the columns, without the space between them."""

    titles: tuple[str, ...]
    widths: tuple[int, ...]
    cells: tuple[tuple[str, ...], ...]


def table_of(rows: Sequence[Row], width: int | None, *, metric: str | None = None) -> Table:
    """Return the table of `rows` in `width` columns of a terminal; None is as wide as it needs to be.

    Columns without a value in any row are left out. Where the width does not suffice, the least important ones are left
    out, and the last line of the log takes what remains.
    """
    columns = _columns(rows)
    named = {row.metric for row in rows if row.metric}
    title = metric or (named.pop() if len(named) == 1 else METRIC)
    titles = {name: fitted(title.upper(), _MOST_METRIC) if name == METRIC else name for name in columns}
    widths = {
        name: max(_LEAST_WIDTHS.get(name, 0), *(num_columns(text) for text in (titles[name], *cells)))
        for name, cells in columns.items()
    }
    if width is not None:
        widths = _fitting(widths, width)
    cells = tuple(tuple(_cell(name, columns[name][at], widths[name]) for name in widths) for at in range(len(rows)))
    return Table(tuple(titles[name] for name in widths), tuple(widths.values()), cells)


def _columns(rows: Sequence[Row]) -> dict[str, list[str]]:
    columns = {
        NAME: [row.name for row in rows],
        STATE: [row.state for row in rows],
        "ALERTS": [", ".join(row.alerts) for row in rows],
        "PROGRESS": [progress_cell(row) for row in rows],
        "ETA": [shown_eta(row.eta, row.late) for row in rows],
        METRIC: [shown_number(row.value) for row in rows],
        TRIAL: [fitted(row.trial, _MOST_TRIAL) for row in rows],
        "STEPS/S": [shown_number(row.steps_per_second) for row in rows],
        "GPU": [shown_percent(row.gpu) for row in rows],
        "CPU": [shown_number(row.cpu) for row in rows],
        "MEMORY": [shown_memory(row.memory) for row in rows],
        "GPU MEM": [shown_memory(row.gpu_memory) for row in rows],
        LAST_LINE: [row.line for row in rows],
    }
    return {name: cells for name, cells in columns.items() if name in (NAME, STATE) or {*cells} - {"", NONE}}


def _cell(column: str, text: str, width: int) -> str:
    return shortened(text, width) if column == NAME else fitted(text, width)


def _fitting(widths: dict[str, int], width: int) -> dict[str, int]:
    """Return the widths of the columns that fit into `width`; each needs one more on both sides."""
    shown = {**widths, NAME: min(widths[NAME], _MOST_NAME)}
    last_line = shown.pop(LAST_LINE, None)

    def missing() -> int:
        return sum(shown.values()) + 2 * len(shown) - width

    # The last column is the least important one, and a name can be shortened before a column is left out.
    while missing() > max(0, shown[NAME] - _LEAST_NAME) and len(shown) > 1:
        shown.popitem()
    shown[NAME] -= max(0, min(missing(), shown[NAME] - 1))
    rest = -missing() - 2
    return shown if last_line is None or rest < _LEAST_LAST_LINE else {**shown, LAST_LINE: rest}


def facts_of(row: Row) -> list[str]:
    """Return what is known about how far a job is: what has been done, ETA, metric, throughput and alerts.

    >>> facts_of(Row(name="a", backend="local", state="Training", running=True, created=0.0, eta=90.0, metric="loss"))
    ['ETA 1 min 30 s', 'loss -']
    """
    facts = [row.done_text] if row.done_text else []
    facts += [f"ETA {shown_eta(row.eta, row.late)}"] if row.eta is not None else []
    facts += [f"{row.metric} {shown_number(row.value)}"] if row.metric else []
    facts += [f"{shown_number(row.steps_per_second)} steps/s"] if row.steps_per_second is not None else []
    return [*facts, *row.alerts]


def progress_cell(row: Row) -> str:
    """Return the progress of a job in one cell: a bar where the end is known, else what has been done.

    >>> job = {"name": "a", "backend": "local", "state": "Training", "running": True, "created": 0.0}
    >>> progress_cell(Row(**job, done=5.0, total=20.0, fraction=0.25)), progress_cell(Row(**job, done=5.0, unit="step"))
    ('━━╌╌╌╌╌╌  25 %', '5 steps')
    """
    if row.fraction is not None:
        return f"{bar(row.fraction, _BAR_COLUMNS)} {100 * row.fraction:3.0f} %"
    return fitted(row.done_text, 16)
