"""One line that moves while `fit` waits in a notebook: state, progress, ETA and loss, in place of the job's log.

The log stays in the job: `job.logs()`. Errors of a service, and why a job stopped, are lines below.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

from herringbone.events.live import LiveView
from herringbone.events.series import by_name
from herringbone.events.summary import summary_of
from herringbone.events.tables import MOST_METRICS, metric_rows
from herringbone.events.view import JobView
from herringbone.plan.shown import is_internal
from herringbone.records.state_lines import shown_state
from herringbone.show.cells import bar
from herringbone.show.charts import chart, escaped, progress_bar
from herringbone.show.console import Console, Line
from herringbone.show.html import table_of_cells
from herringbone.system.times import shown_span
from herringbone.views.top.rows import facts_of, row_of
from herringbone_contract.errors import HerringboneError
from herringbone_contract.masking import printable

if TYPE_CHECKING:
    from herringbone.events.view import JobView
    from herringbone.protocols.backend import Backend
    from herringbone.records.index import JobRecord


_LOOK_SECONDS = 0.5
_MOST_LINE_CHARS = 200
_MOST_NOTES = 5
_BAR_COLUMNS = 20
# Shows texts by MIME type; the second argument is true for the first call.
Display = Callable[[dict[str, Any], bool], None]


class NotebookConsole(Console):
    """A `Console` that shows a job's progress in one place, instead of its log.

    >>> NotebookConsole("digits-1", backend, kernel_display())       # doctest: +SKIP
    """

    shows_log = False

    def __init__(self, name: str, backend: Backend, display: Display) -> None:
        super().__init__()
        self._name, self._backend, self._display = name, backend, display
        self._view = JobView()
        self._live: LiveView | None = None
        self._record: JobRecord | None = None
        self._last = ""
        self._notes: list[str] = []
        self._last_shown: dict[str, Any] | None = None
        self._closed = False
        self._due = 0.0

    def show(self, lines: Sequence[Line]) -> None:
        """Take the newest line, and look at the job twice a second."""
        if lines:
            self._last = lines[-1].text.rpartition("\r")[2][:_MOST_LINE_CHARS]
        if time.monotonic() >= self._due:
            self.update()

    def look(self, record: JobRecord) -> None:
        """Take the job's row."""
        if self._record is None or record.done:
            self._due = 0.0
        self._record = record

    def note(self, text: str, stderr: Console) -> None:  # noqa: ARG002 - it is shown with the rest
        self._notes = [*self._notes, text][-_MOST_NOTES:]
        self.update()

    def say(self, text: str) -> None:
        """Show the last line, of which there is one."""
        self._last = ""
        self._notes.append(text)
        self.update()

    def settle(self) -> None:
        """Do nothing: no row of a terminal is open."""

    def close(self) -> None:
        """Show the job's end, and close its events."""
        self.update()
        self._closed = True
        if self._live is not None:
            self._live.close()
            self._live = None

    def update(self) -> None:
        """Read what is new, and replace what is shown if it has changed."""
        self._due = time.monotonic() + max(_LOOK_SECONDS, self._backend.pace.shortest)
        try:
            if self._live is None and self._record is not None and not self._closed:
                self._live = LiveView(self._backend.events(self._name))
            if self._live is not None:
                self._view = self._live.read()
        except (HerringboneError, OSError):
            pass  # the wait itself reports errors of the service
        if self._record is None:
            return
        data = shown(self._record, self._view, self._last, self._notes, now=time.time())
        if data != self._last_shown:
            self._display(data, self._last_shown is None)
            self._last_shown = data


def job_table(description: Mapping[str, Any], open_view: Callable[[], LiveView]) -> str:
    """Return the table in which a notebook shows a job, with what its events say so far."""
    view = None
    # SageMaker's answer has the last values, and its log may have thousands of pages.
    if "TrainingJobArn" not in description:
        with suppress(HerringboneError, OSError), closing(open_view()) as live:
            view = live.read()
    return job_html(description, view)


def shown(record: JobRecord, view: JobView, last: str, notes: list[str], *, now: float) -> dict[str, Any]:
    """Return a job's progress as texts by MIME type, for a notebook and for a console. Pure.

    `last` is the last line of the log, `notes` are lines about the job, such as its end.
    """
    row = row_of(record, view, now=now)
    facts = [f"{row.name}: {shown_state(record)}"]
    if row.seconds is not None and row.running:
        # Whole seconds: the line need not change more often.
        facts.append(shown_span(float(int(row.seconds))).replace(".0 s", " s"))
    facts += facts_of(row)
    facts = [printable(fact) for fact in facts]
    below = [printable(line) for line in (last if row.running else "", *notes) if line]
    plain = "  ".join(
        [*facts[:1], *([bar(row.fraction, _BAR_COLUMNS)] if row.fraction is not None else []), *facts[1:]]
    )
    parts = [f"<b>{escaped(facts[0])}</b>", *([progress_bar(row.fraction)] if row.fraction is not None else [])]
    parts += [escaped(fact) for fact in facts[1:]]
    found = by_name(view.series.values()).get(row.metric)
    picture = chart(row.metric, found[0].values) if found else ""
    lines = "".join(f'<div style="opacity:.7;white-space:pre-wrap">{escaped(line)}</div>' for line in below)
    return {
        "text/html": f"<div>{' &nbsp; '.join(parts)}</div>{f'<div>{picture}</div>' if picture else ''}{lines}",
        "text/plain": "\n".join([plain, *below]),
    }


def job_html(description: Mapping[str, Any], view: JobView | None = None) -> str:
    """Return a job's table, from the description that `TrainingJob.describe` returns, and from its events."""
    name = description["TrainingJobName"]
    rows = [("status", f"{description['TrainingJobStatus']} ({description['SecondaryStatus']})")]
    pictures = [] if view is None else [*_progress_rows(view), *metric_rows(view.series.values())]
    if not pictures:
        pictures = [
            (str(metric["MetricName"]), escaped(str(metric["Value"])))
            for metric in (description.get("FinalMetricDataList") or ())[:MOST_METRICS]
        ]
    for label, key in (("started", "TrainingStartTime"), ("ended", "TrainingEndTime")):
        if description.get(key) is not None:
            rows.append((label, str(description[key])))
    if model := description.get("ModelArtifacts"):
        rows.append(("model", str(model["S3ModelArtifacts"])))
    if failure := description.get("FailureReason"):
        rows.append(("failure", str(failure)))
    values = description.get("HyperParameters") or {}
    rows += [("hyperparameter", f"{key} = {values[key]}") for key in sorted(values) if not is_internal(key)]
    rows.append(("log", f"herringbone logs {name}"))
    texts = [(label, escaped(text)) for label, text in rows]
    # The status, then what moves, then what stays.
    return table_of_cells(f"TrainingJob {name}", [texts[0], *pictures, *texts[1:]])


def _progress_rows(view: JobView) -> list[tuple[str, str]]:
    summary = summary_of(view, running=False, now=0.0)
    if not summary.done_text:
        return []
    done = escaped(summary.done_text)
    return [("progress", done if summary.fraction is None else f"{progress_bar(summary.fraction)} &nbsp; {done}")]
