"""`herringbone shell`: open a shell where a host of a running job runs, or run one command there."""

from __future__ import annotations

import sys

import click

from herringbone.cli.commands import CommandWithWords
from herringbone.cli.names import job_name


@click.command(cls=CommandWithWords)
@job_name
@click.option("--host", metavar="HOST", help="the host, as algo-2 (default: the first one)")
@click.pass_obj
def command(words: list[str], name: str, host: str | None) -> int:
    """Open a shell where a host of a running job runs; the words after -- are a command to run instead.

    It begins in the folder of the job's code, with the SM_* variables of the host. It does not have the job's
    environment, its credentials, or the variables of one rank. The exit code is the command's.
    """
    from herringbone.access.requests import way_into
    from herringbone.backends.registry import backend_of_job

    chosen, access = way_into(backend_of_job(name), name, host)
    if not words:
        print(f"a shell on {chosen} of job {name}; `exit` leaves it, and the job goes on", file=sys.stderr)
    sys.stdout.flush()
    return access.run(words)
