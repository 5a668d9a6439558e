"""`herringbone logs`: show a job's log, and with `-f` follow it."""

from __future__ import annotations

import json
import sys

import click

from herringbone.cli.commands import json_option
from herringbone.cli.common import exit_code, on_interrupt_option
from herringbone.cli.names import job_name
from herringbone.jobs.console import Console
from herringbone.jobs.interrupt import OnInterrupt, stops, ways_back
from herringbone.jobs.job import attach


@click.command()
@job_name
@click.option("-f", "--follow", is_flag=True, help="wait until the job is over; the exit code tells its end")
@click.option("--rank", type=int, metavar="N", help="only this rank's lines")
@click.option("--host", metavar="NAME", help="only this host's lines, as algo-1")
@json_option("one JSON object a line: time, host, rank, text")
# A user who only follows a log does not expect Ctrl-C to stop the job.
@on_interrupt_option(default="detach")
def command(
    name: str, follow: bool, rank: int | None, host: str | None, as_json: bool, on_interrupt: OnInterrupt
) -> int:
    console = Console()
    job = attach(name)
    try:
        for line in job.logs(follow=follow, rank=rank, host=host):
            if as_json:
                fields = {"time": line.time.isoformat(), "host": line.host, "rank": line.rank, "text": line.text}
                console.say(json.dumps(fields))
            else:
                console.show([line])
    except KeyboardInterrupt:
        # Standard output may go to a file or another program, which expects lines of the log alone.
        messages = Console(sys.stderr)
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
        return 0
    job.raise_failure(log_shown=True)
    return exit_code(job.secondary_status)
