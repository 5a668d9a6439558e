"""`herringbone top`: all jobs, live on a terminal, or once as a table."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from herringbone.cli.commands import json_option
from herringbone.records.state_lines import STATE_STYLES
from herringbone.show.console import Console
from herringbone.show.tables import show_table

if TYPE_CHECKING:
    from herringbone.views.top.rows import Row

# The user waits for the table.
_PATIENCE_SECONDS = 10.0
# Here and not in `herringbone.views.top`, which the help does not load.
_NUM_FINISHED = 10


@click.command()
@click.option("--metric", metavar="NAME", help="the metric to show (default: the loss)")
@click.option(
    "-n",
    "number",
    type=click.IntRange(min=0),
    default=_NUM_FINISHED,
    metavar="N",
    help="jobs that are over (default: 10)",
)
@click.option("--once", is_flag=True, help="print one table and end; so does a pipe")
@json_option("one JSON array, and end")
def command(metric: str | None, number: int, *, once: bool, as_json: bool) -> int:
    """Show all jobs live: state, progress, ETA, loss, throughput, use of CPU, GPU and memory, last line of the log.

    Jobs that run come first, then the newest that are over. Arrow keys choose a job, Enter shows its metrics, hosts,
    ranks and log, s asks and stops it, / filters, q quits. The live view needs the extra `top`.
    """
    from herringbone.views.top.monitor import Monitor

    stderr = Console(sys.stderr)
    # A dumb terminal, as an editor's, has no cursor that could move.
    is_live = sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    if is_live and not (once or as_json):
        try:
            from herringbone.views.top.app import TopApp
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] != "textual":
                raise
            stderr.say("the live view needs Textual: run pip install '.[top]' in your clone of Herringbone")
        else:
            monitor = Monitor(metric=metric, num_finished=number)
            monitor.start()
            TopApp(monitor, metric=metric).run()
            return 0
    monitor = Monitor(metric=metric, num_finished=number)
    monitor.refresh()
    if not monitor.wait(_PATIENCE_SECONDS):
        stderr.say(f"no answer within {_PATIENCE_SECONDS:.0f} s: some rows are as they were last seen")
    if monitor.trouble:
        stderr.say(monitor.trouble)
    rows = monitor.rows()
    if as_json:
        print(json.dumps([row.as_json() for row in rows]))
    else:
        _print_table(rows, metric)
    return 0


def _print_table(rows: Sequence[Row], metric: str | None) -> None:
    from herringbone.views.top.rows import table_of

    # A pipe has no width, unless the user gives it one.
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isdigit() else None
    if sys.stdout.isatty():
        from rich.console import Console as Terminal

        width = Terminal().width
    table = table_of(rows, width, metric=metric)
    show_table([table.titles, *table.cells], cut=len(table.titles) - 1, styles=STATE_STYLES)
