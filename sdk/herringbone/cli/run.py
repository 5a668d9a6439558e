"""`herringbone run`: start a job, and show its log."""

from __future__ import annotations

import argparse
import json
import sys

from herringbone.cli.common import add_on_interrupt, exit_code
from herringbone.cli.request import EPILOG, add_arguments, read_request
from herringbone.jobs.console import Console
from herringbone.jobs.index import COMPLETED, STOPPED
from herringbone.jobs.job import TrainingJob


def add_to(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "run",
        help="run a job file or a script",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(parser)
    parser.add_argument("--detach", action="store_true", help="print the job's name and return; the job continues")
    add_on_interrupt(parser)
    parser.add_argument("--quiet", action="store_true", help="do not show the log")
    parser.add_argument("--json", action="store_true", help="end with the job's description as JSON; log on stderr")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    estimator, inputs = read_request(args)
    # Not `wait=True`: that shows the log on standard output, which --json needs for its JSON.
    job = estimator.fit(inputs, wait=False, job_name=args.job_name)
    if args.detach:
        print(json.dumps(job.describe()) if args.json else job.name)
        return 0
    try:
        console = None if args.quiet else Console(sys.stderr if args.json else sys.stdout)
        job.follow(console, on_interrupt=args.on_interrupt)
    finally:
        # Also after a failure or Ctrl-C: a program that reads --json always gets the description.
        _report(job, as_json=args.json, quiet=args.quiet)
    # `follow` has raised if the job failed.
    return exit_code(job.secondary_status)


def _report(job: TrainingJob, *, as_json: bool, quiet: bool) -> None:
    if as_json:
        print(json.dumps(job.describe()), flush=True)
    elif not quiet and job.status in (COMPLETED, STOPPED):
        print(f"job {job.name}: {job.status} after {job.duration or 0:.1f} s, model: {job.model_data}")
