"""The screens of `herringbone top`, in Textual. Thin: `Monitor` reads the jobs, and pure functions make every text.

No text is handed over as a `str`: Textual would read its brackets as markup.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.widgets import Footer, Input, OptionList, Static
from textual.widgets.option_list import Option

from herringbone.records.state_lines import STATE_STYLES
from herringbone.show.cells import fitted, num_columns
from herringbone.views.top.detail import heading, lines_of
from herringbone.views.top.rows import STATE, Row, Table, matches, table_of
from herringbone_contract.errors import HerringboneError

if TYPE_CHECKING:
    from herringbone.views.top.monitor import JobReader, Monitor
    from herringbone.views.top.tunings import TuningReader

_UPDATE_SECONDS = 1.0
_MESSAGE_SECONDS = 10.0


class JobList(OptionList):
    """The list of jobs, a line each; the way to the details is shown at the bottom.

    Not a DataTable, which draws all of its cells again when one changes: three times the work.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "select", "Details")]


class TopApp(App[None]):
    """The list of jobs: `TopApp(monitor).run()`."""

    TITLE = "herringbone top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #titles { height: 1; padding: 0 1; text-style: bold; background: $panel; }
    #jobs { height: 1fr; border: none; padding: 0; text-wrap: nowrap; }
    #jobs:focus { border: none; }
    #words { display: none; height: 1; border: none; padding: 0 1; }
    #words.open { display: block; }
    #line { height: 1; padding: 0 1; color: $text-muted; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,ctrl+c", "quit", "Quit"),
        Binding("s", "stop", "Stop"),
        Binding("slash", "filter", "Filter", key_display="/"),
    ]

    def __init__(self, jobs: Monitor, *, metric: str | None = None) -> None:
        super().__init__()
        self._jobs, self._metric = jobs, metric
        self._words = ""
        self._rows: list[Row] = []
        self._table = Table((), (), ())
        self._line = ""
        # Written by threads that stop jobs, read by the timer.
        self._messages: deque[tuple[str, bool]] = deque()

    def compose(self) -> ComposeResult:
        yield Static(id="titles", markup=False)
        yield JobList(id="jobs", markup=False, compact=True)
        yield Static(id="line", markup=False)
        yield Input(id="words", placeholder="words of name, state or backend; Enter keeps, Escape clears", compact=True)
        yield Footer()

    def on_mount(self) -> None:
        self.update_rows()
        self.set_interval(_UPDATE_SECONDS, self.update_rows)

    def on_resize(self) -> None:
        # After the layout: the table knows its new width then.
        self.call_after_refresh(self.update_rows)

    def update_rows(self) -> None:
        """Show the newest state of all jobs, or of the job whose details are open."""
        while self._messages:
            text, is_error = self._messages.popleft()
            severity = "error" if is_error else "information"
            self.notify(text, severity=severity, timeout=_MESSAGE_SECONDS, markup=False)  # type: ignore[arg-type]
        if isinstance(self.screen, DetailScreen):
            self.screen.show()
            return
        if self.screen is not self.screen_stack[0]:
            return
        self._rows = [row for row in self._jobs.rows() if matches(row, self._words)]
        options = self.query_one("#jobs", JobList)
        # A line has a blank on both sides.
        self._fill(options, table_of(self._rows, options.scrollable_content_region.width, metric=self._metric))
        self._show_line()

    def _fill(self, options: JobList, table: Table) -> None:
        before, self._table = self._table, table
        names, chosen = [row.key for row in self._rows], self._chosen()
        if before[:2] != table[:2]:
            self.query_one("#titles", Static).update(line_of(table, table.titles))
        if [option.id for option in options.options] == names and before.widths == table.widths:
            # A line that stays is not drawn again.
            for at, (old, new) in enumerate(zip(before.cells, table.cells, strict=True)):
                if old != new:
                    options.replace_option_prompt_at_index(at, line_of(table, new))
            return
        options.set_options(
            Option(line_of(table, cells), id=name) for name, cells in zip(names, table.cells, strict=True)
        )
        options.highlighted = names.index(chosen) if chosen in names else 0 if names else None

    def _chosen(self) -> str | None:
        option = self.query_one("#jobs", JobList).highlighted_option
        return None if option is None else option.id

    def _show_line(self) -> None:
        """Show below the table what a narrow table has no room for: the last line of the job under the cursor."""
        chosen = self._chosen()
        row = next((row for row in self._rows if row.key == chosen), None)
        text = self._jobs.trouble or ("no jobs" if row is None else row.line)
        line = fitted(text, self.size.width - 2)
        if line != self._line:
            self._line = line
            self.query_one("#line", Static).update(Text(line))

    def on_option_list_option_highlighted(self) -> None:
        self._show_line()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        name = event.option_id
        reader = None if name is None else self._jobs.reader(name)
        if name is not None and reader is not None:
            reader.open_detail()
            self.push_screen(DetailScreen(name, reader))

    def action_stop(self) -> None:
        """Ask, and stop the job under the cursor, or the one whose details are open."""
        name = self.screen.job if isinstance(self.screen, DetailScreen) else self._chosen()
        reader = None if name is None else self._jobs.reader(name)
        if name is None or reader is None or isinstance(self.screen, StopScreen):
            return
        if not reader.row.running:
            self.notify(f"{subject(name)} is over: {reader.row.state}", markup=False)
            return

        def answered(stops: bool | None) -> None:
            if stops:
                self.notify(f"stopping {subject(name)}", markup=False)
                # A daemon: a service that never answers must not keep the program from ending.
                threading.Thread(target=self._stop, args=(name, reader), daemon=True).start()

        self.push_screen(StopScreen(name), answered)

    def _stop(self, name: str, reader: JobReader | TuningReader) -> None:
        try:
            reader.stop_job()
        except (HerringboneError, OSError) as error:
            self._messages.append((f"{subject(name)} was not stopped: {error}", True))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - the signature is Textual's
        """Leave out of the line at the bottom what only the list has."""
        return action != "filter" or len(self.screen_stack) == 1

    def action_filter(self) -> None:
        """Open the line for the words that choose jobs."""
        words = self.query_one("#words", Input)
        words.add_class("open")
        words.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._words = event.value
        self.update_rows()

    def on_input_submitted(self) -> None:
        self._close_filter()

    def key_escape(self) -> None:
        """Show all jobs again."""
        self.query_one("#words", Input).value = ""
        self._close_filter()

    def _close_filter(self) -> None:
        words = self.query_one("#words", Input)
        words.set_class(bool(words.value), "open")
        self.query_one("#jobs", JobList).focus()


def line_of(table: Table, cells: Sequence[str]) -> Text:
    """Return one row of a table as a line, the columns aligned; a job's state has its colour."""
    line = Text(no_wrap=True)
    for title, cell, width in zip(table.titles, cells, table.widths, strict=True):
        line.append(cell, STATE_STYLES.get(cell, "") if title == STATE else "")
        line.append(" " * (width - num_columns(cell) + 2))
    line.rstrip()
    return line


def subject(key: str) -> str:
    """Return a row in a sentence, from its key: a search's says what it is."""
    return key if " " in key else f"job {key}"


class DetailScreen(Screen[None]):
    """One job: progress, metrics, hosts, ranks, and the end of its log."""

    CSS = """
    DetailScreen #title { text-style: bold; padding: 0 1; height: auto; }
    DetailScreen #tables { height: auto; max-height: 60%; padding: 0 1; }
    DetailScreen #log { height: 1fr; border-top: solid $primary; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,backspace", "app.pop_screen", "Back")]

    def __init__(self, job: str, reader: JobReader | TuningReader) -> None:
        super().__init__()
        self.job, self._reader = job, reader
        self._shown: dict[str, str] = {}

    def compose(self) -> ComposeResult:
        yield Static(id="title", markup=False)
        with VerticalScroll(id="tables"):
            yield Static(id="facts", markup=False)
        with VerticalScroll(id="log"):
            yield Static(id="lines", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        self.show()

    def show(self) -> None:
        """Show the newest detail that the reader has published."""
        # The timer may come before the screen has its widgets.
        if not self.query("#lines"):
            return
        row, detail, width = self._reader.row, self._reader.detail, self.app.size.width - 4
        self._put("title", f"{self.job}\n{fitted(heading(row), width)}")
        if detail is None:
            self._put("facts", "reading the job...")
            return
        tables = (detail.metrics, detail.hosts, detail.ranks, tuple((note,) for note in detail.notes))
        facts = "\n\n".join("\n".join(lines_of(table, width)) for table in tables if table)
        self._put("facts", facts or "no metrics and no measurements yet")
        if self._put("lines", "\n".join(fitted(line, width) for line in detail.lines) or "no log yet"):
            log = self.query_one("#log", VerticalScroll)
            if log.max_scroll_y - log.scroll_y <= 1:
                log.scroll_end(animate=False)

    def _put(self, widget: str, text: str) -> bool:
        if self._shown.get(widget) == text:
            return False
        self._shown[widget] = text
        self.query_one(f"#{widget}", Static).update(Text(text))
        return True


class StopScreen(ModalScreen[bool]):
    """Asks whether to stop a job; anything but `y` leaves it alone."""

    CSS = """
    StopScreen { align: center middle; }
    StopScreen > Vertical { width: 60; max-width: 90%; height: auto; border: round $error; padding: 1 2; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Stop the job"),
        Binding("n,escape,enter,q", "answer(False)", "Leave it running"),
    ]

    def __init__(self, job: str) -> None:
        super().__init__()
        self._job = job

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(
                Text(f"Stop {subject(self._job)}? Every rank gets SIGTERM.\n\ny stops it, n leaves it running.")
            )

    def action_answer(self, stops: bool) -> None:
        """Close the question with an answer."""
        self.dismiss(stops)
