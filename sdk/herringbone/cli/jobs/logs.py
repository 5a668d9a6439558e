"""`herringbone logs`: show a job's log, and with `-f` follow it."""

from __future__ import annotations

import json
import sys
from datetime import datetime, timezone
from itertools import islice
from typing import Any

import click

from herringbone.api.job import attach
from herringbone.cli.commands import json_option
from herringbone.cli.common import exit_code, on_interrupt_option
from herringbone.cli.names import job_name
from herringbone.records.download import removed_log
from herringbone.records.logs import LogLine, check_pattern
from herringbone.show.console import Console
from herringbone.system.interrupt import OnInterrupt, stops, ways_back
from herringbone.system.times import parse_moment
from herringbone_contract.errors import OptionError


class Moment(click.ParamType):  # type: ignore[type-arg] # generic since click 8.4
    """The type of an option that is a moment: a span before now, or a time."""

    name = "moment"

    def convert(self, value: str | datetime, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        moment = parse_moment(value, datetime.now(timezone.utc))
        if moment is None:
            message = f"{value!r} is no moment; write 90s, 10m, 2h or 3d, a time (11:50), or 2026-01-31T11:50"
            raise click.BadParameter(message, ctx, param)
        return moment


def _pattern(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is not None and not ctx.resilient_parsing:
        try:
            check_pattern(value)
        except OptionError as error:
            raise click.BadParameter(str(error), ctx, param) from None
    return value


def _as_json(line: LogLine) -> str:
    return json.dumps({"time": line.time.isoformat(), "host": line.host, "rank": line.rank, "text": line.text})


@click.command()
@job_name
@click.option("-f", "--follow", is_flag=True, help="wait until the job is over; the exit code tells its end")
@click.option("--rank", type=int, metavar="N", help="only this rank's lines")
@click.option("--host", metavar="NAME", help="only this host's lines, as algo-1")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="the last N lines; with -f, and all that follow")
@click.option("--since", type=Moment(), metavar="MOMENT", help="only lines since then: 10m, 2h, 11:50 or 2026-01-31")
@click.option(
    "--grep", "pattern", callback=_pattern, metavar="REGEX", help="only lines with a match of this regular expression"
)
@click.option("--timestamps", is_flag=True, help="put the time of each line in front of it")
@json_option("one JSON object a line: time, host, rank, text")
# A user who only follows a log does not expect Ctrl-C to stop the job.
@on_interrupt_option(default="detach")
def command(
    name: str, follow: bool, timestamps: bool, as_json: bool, on_interrupt: OnInterrupt, **selection: Any
) -> int:
    """Show a job's log, or those of its lines that all the flags together choose."""
    console = Console(timestamps=timestamps)
    job = attach(name)
    if removed := removed_log(job.name):
        Console(sys.stderr).say(removed)
    try:
        lines = job.logs(follow=follow, live=follow and not as_json and console.redraws, **selection)
        # What is there already is written in large pieces; a line that is waited for, as soon as it is there.
        shown = False
        while piece := list(islice(lines, 1 if follow else 1000)):
            shown = True
            if as_json:
                console.say("\n".join(map(_as_json, piece)))
            else:
                console.show(piece)
    except KeyboardInterrupt:
        # Standard output may go to a file or another program, which expects lines of the log alone.
        messages = Console(sys.stderr)
        console.settle()
        # Without -f, Ctrl-C interrupts a printout, and says nothing about the job.
        if not follow:
            raise
        if stops(on_interrupt, job.name):
            job.stop()
            messages.say(f"stopping job {job.name}")
        else:
            messages.say(ways_back(job.name))
        raise
    if not follow:
        if not shown and selection["rank"] is not None:
            Console(sys.stderr).say(f"job {job.name}: its log has no such line of rank {selection['rank']}")
        return 0
    job.raise_failure(log_shown=True)
    return exit_code(job.secondary_status)
