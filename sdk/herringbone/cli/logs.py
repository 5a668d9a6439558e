"""`herringbone logs`: show a job's log, and with `-f` follow it."""

from __future__ import annotations

import argparse
import json
import sys

from herringbone.cli.common import add_on_interrupt, exit_code
from herringbone.jobs.console import Console
from herringbone.jobs.interrupt import stops, ways_back
from herringbone.jobs.job import attach
from herringbone_contract.errors import JobFailedError


def add_to(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser("logs", help="show a job's log")
    parser.add_argument("name", help="the job's name")
    parser.add_argument(
        "-f", "--follow", action="store_true", help="wait until the job is over; the exit code tells its end"
    )
    parser.add_argument("--rank", type=int, metavar="N", help="only this rank's lines")
    parser.add_argument("--host", metavar="NAME", help="only this host's lines, as algo-1")
    parser.add_argument("--json", action="store_true", help="one JSON object a line: time, host, rank, text")
    # A user who only follows a log does not expect Ctrl-C to stop the job.
    add_on_interrupt(parser, default="detach")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    console = Console()
    job = attach(args.name)
    try:
        for line in job.logs(follow=args.follow, rank=args.rank, host=args.host):
            if args.json:
                fields = {"time": line.time.isoformat(), "host": line.host, "rank": line.rank, "text": line.text}
                console.say(json.dumps(fields))
            else:
                console.show([line])
    except KeyboardInterrupt:
        # Standard output may go to a file or another program, which expects lines of the log alone.
        messages = Console(sys.stderr)
        # Without -f, Ctrl-C interrupts a printout, and says nothing about the job.
        if not args.follow:
            raise
        if stops(args.on_interrupt, job.name):
            job.stop()
            messages.say(f"stopping job {job.name}")
        else:
            messages.say(ways_back(job.name))
        raise
    if not args.follow:
        return 0
    if (failure := job.failure) is not None:
        raise JobFailedError(job.name, failure)
    return exit_code(job.secondary_status)
