"""`herringbone ls`: list the jobs that this machine knows."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import click

from herringbone.backends.listing import all_jobs, has_status
from herringbone.cli.commands import json_option
from herringbone.cli.common import status_option
from herringbone.records.home import find_home
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
@json_option("one JSON array, the newest job first")
def command(number: int | None, everything: bool, status: Sequence[str], size: bool, as_json: bool) -> int:
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
    sizes = {record.name: size_of(home.job(record.name).path) for record in shown} if size else {}
    places = place_texts(home, shown, line)
    if as_json:
        print(json.dumps([_summary(record, sizes, places) for record in shown]))
    elif on_terminal:
        _show_on_terminal(shown, sizes, places, older=len(records) - len(shown))
    else:
        head = (*_HEAD, "BYTES") if size else _HEAD
        show_table([head, *(_row(record, sizes, places) for record in shown)])
    return 0


def _show_on_terminal(
    shown: Sequence[JobRecord], sizes: Mapping[str, int], places: Mapping[str, str], *, older: int
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
        row += (shown_bytes(sizes[record.name]),) if sizes else ()
        rows.append((*row, places.get(record.name) or why_ended(record, failures.get(record.name))))
    head = (*_TERMINAL_HEAD, "SIZE", "WHY") if sizes else (*_TERMINAL_HEAD, "WHY")
    show_table([head, *rows], shorten=0, cut=len(head) - 1, styles=STATE_STYLES)


def _span(record: JobRecord, now: float) -> str:
    # A job that still runs counts up to now.
    return "" if record.started is None else shown_span((record.ended or now) - record.started)


def _row(record: JobRecord, sizes: Mapping[str, int], places: Mapping[str, str]) -> tuple[str, ...]:
    # A finished job has the same word as status and as secondary status, so show it once.
    status = record.status if record.status == record.secondary_status else f"{record.status}/{record.secondary_status}"
    status += f": {place}" if (place := places.get(record.name)) else ""
    created = datetime.fromtimestamp(record.created).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    seconds = "" if record.started is None else f"{(record.ended or time.time()) - record.started:.1f}"
    row = (record.name, status, created, seconds, str(record.num_hosts))
    return (*row, str(sizes[record.name])) if sizes else row


def _summary(record: JobRecord, sizes: Mapping[str, int], places: Mapping[str, str]) -> dict[str, Any]:
    """Return a job as SageMaker's ListTrainingJobs describes it."""
    summary = listed(record, lambda seconds: datetime.fromtimestamp(seconds).astimezone().isoformat())
    summary |= {"Place": places[record.name]} if record.name in places else {}
    return summary | ({"SizeInBytes": sizes[record.name]} if sizes else {})
