"""`herringbone run`: start a job, and show its log."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from herringbone.cli.commands import JobCommand, json_option
from herringbone.cli.common import exit_code, nothing_started, on_interrupt_option
from herringbone.cli.train.request import EPILOG, JobFlags, job_flags, read_request
from herringbone.show.console import Console
from herringbone.system.interrupt import OnInterrupt


@click.command(cls=JobCommand, epilog=EPILOG)
@job_flags
@click.option("--detach", is_flag=True, help="print the job's name and return; the job continues")
@click.option("--queue/--no-queue", default=None, help="wait in line for GPUs that other jobs have, or not")
@click.option("--priority", type=int, metavar="N", help="the job's rank in the line, -100 to 100 (default: 0)")
@on_interrupt_option()
@click.option("--quiet", is_flag=True, help="do not show the log")
@json_option("end with the job's description as JSON; log on stderr")
@click.pass_obj
def command(
    script_arguments: list[str],
    /,
    detach: bool,
    queue: bool | None,
    priority: int | None,
    on_interrupt: OnInterrupt | None,
    quiet: bool,
    as_json: bool,
    **flags: Any,
) -> int:
    if priority is not None:
        flags["options"] = (*flags["options"], f"priority={priority}")
    request = JobFlags(script_arguments=script_arguments, **flags)
    estimator, inputs = read_request(request)
    # Not `wait=True`: that shows the log on standard output, which --json needs for its JSON.
    with nothing_started():
        job = estimator.fit(inputs, wait=False, logs=not (quiet or detach), job_name=request.job_name, queue=queue)
    if detach:
        print(json.dumps(job.describe()) if as_json else job.name)
        return 0
    try:
        console = None if quiet else Console(sys.stderr if as_json else sys.stdout)
        job.follow(console, on_interrupt=on_interrupt)
    finally:
        # Also after a failure or Ctrl-C: a program that reads --json always gets the description.
        if as_json:
            print(json.dumps(job.describe()), flush=True)
    # `follow` has raised if the job failed.
    return exit_code(job.secondary_status)
