"""`herringbone ls`: list the jobs that this machine knows."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import click

from herringbone.backends.listing import all_jobs, has_status
from herringbone.backends.registry import backend_named
from herringbone.cli.commands import json_option
from herringbone.cli.common import status_option
from herringbone.plan.budget import shown_dollars
from herringbone.records.home import Home, find_home
from herringbone.records.index import JobIndex, JobRecord
from herringbone.records.state_lines import STATE_STYLES, listed, shown_state, why_ended
from herringbone.show.console import Console
from herringbone.show.tables import show_table
from herringbone.slots.places import LineLook, place_texts
from herringbone.system.disk import size_of
from herringbone.system.sizes import shown_bytes
from herringbone.system.times import shown_ago, shown_span

_SHOWN_ON_TERMINALS = 20
_HEAD = ("NAME", "STATUS", "CREATED", "SECONDS", "HOSTS")
_TERMINAL_HEAD = ("NAME", "STATUS", "CREATED", "TIME", "HOSTS")


@click.command()
@click.option(
    "-n", "number", type=click.IntRange(min=1), metavar="N", help="the newest N (default: 20 on a terminal, else all)"
)
@click.option("--all", "everything", is_flag=True, help="all jobs, also on a terminal")
@status_option
@click.option("--size", is_flag=True, help="the size of each job's folder; a file with two names counts once")
@click.option("--cost", is_flag=True, help="the dollars of each job so far, where its price is known")
@json_option("one JSON array, the newest job first")
def command(number: int | None, everything: bool, status: Sequence[str], size: bool, cost: bool, as_json: bool) -> int:
    """List the jobs: on a terminal the newest 20, the newest last; in a pipe all, the newest first."""
    if everything and number is not None:
        raise click.UsageError("--all and -n N exclude each other.")
    on_terminal = sys.stdout.isatty() and not as_json
    # Messages about lost jobs go to standard error, so that --json stays one JSON array.
    home = find_home()
    line = LineLook(home)
    records = [record for record in all_jobs(Console(sys.stderr).say, line=line) if has_status(record, status)]
    if not records and JobIndex(home.index).is_empty():
        Console(sys.stderr).say(f"no job has run yet in {home.path}")
    if on_terminal and number is None and not everything:
        number = _SHOWN_ON_TERMINALS
    shown = records[:number]
    more = []
    if size:
        sizes = {record.name: size_of(home.job(record.name).path) for record in shown}
        more.append(_Column("BYTES", "SIZE", "SizeInBytes", sizes, shown_bytes))
    if cost:
        more.append(_Column("DOLLARS", "COST", "CostInDollars", _costs(shown, home), shown_dollars))
    places = place_texts(home, shown, line)
    if as_json:
        print(json.dumps([_summary(record, more, places) for record in shown]))
    elif on_terminal:
        _show_on_terminal(shown, more, places, older=len(records) - len(shown))
    else:
        head = (*_HEAD, *(column.head for column in more))
        show_table([head, *(_row(record, more, places) for record in shown)])
    return 0


class _Column(NamedTuple):
    """A further column: its names in pipes, on terminals and in JSON, its values by job, and how people see one."""

    head: str
    terminal_head: str
    member: str
    values: Mapping[str, float]
    shown: Callable[[Any], str]

    def text(self, name: str) -> str:
        return self.shown(self.values[name]) if name in self.values else ""


def _costs(records: Sequence[JobRecord], home: Home) -> dict[str, float]:
    index = JobIndex(home.index)
    # These rows are summaries, and a price is in the plan.
    costs = {record.name: backend_named(record.backend).cost(index.get(record.name)) for record in records}
    return {name: round(cost, 4) for name, cost in costs.items() if cost is not None}


def _show_on_terminal(
    shown: Sequence[JobRecord], more: Sequence[_Column], places: Mapping[str, str], *, older: int
) -> None:
    if older:
        print(f"{older} older: herringbone ls --all")
    failures = JobIndex(find_home().index).failures()
    now = time.time()
    rows = []
    for record in reversed(shown):
        row: tuple[str, ...] = (
            record.name,
            shown_state(record),
            shown_ago(now - record.created),
            _span(record, now),
            str(record.num_hosts),
        )
        row += tuple(column.text(record.name) for column in more)
        rows.append((*row, places.get(record.name) or why_ended(record, failures.get(record.name))))
    head = (*_TERMINAL_HEAD, *(column.terminal_head for column in more), "WHY")
    show_table([head, *rows], shorten=0, cut=len(head) - 1, styles=STATE_STYLES)


def _span(record: JobRecord, now: float) -> str:
    # A job that still runs counts up to now.
    return "" if record.started is None else shown_span((record.ended or now) - record.started)


def _row(record: JobRecord, more: Sequence[_Column], places: Mapping[str, str]) -> tuple[str, ...]:
    # A finished job has the same word as status and as secondary status, so show it once.
    status = record.status if record.status == record.secondary_status else f"{record.status}/{record.secondary_status}"
    status += f": {place}" if (place := places.get(record.name)) else ""
    created = datetime.fromtimestamp(record.created).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    seconds = "" if record.started is None else f"{(record.ended or time.time()) - record.started:.1f}"
    row = (record.name, status, created, seconds, str(record.num_hosts))
    return (*row, *(str(column.values.get(record.name, "")) for column in more))


def _summary(record: JobRecord, more: Sequence[_Column], places: Mapping[str, str]) -> dict[str, Any]:
    """Return a job as SageMaker's ListTrainingJobs describes it."""
    summary = listed(record, lambda seconds: datetime.fromtimestamp(seconds).astimezone().isoformat())
    summary |= {"Place": places[record.name]} if record.name in places else {}
    return summary | {column.member: column.values[record.name] for column in more if record.name in column.values}
