"""`herringbone stop`: stop a job."""

from __future__ import annotations

import json
import math

import click

from herringbone.api.job import TrainingJob, attach
from herringbone.cli.commands import json_option
from herringbone.cli.names import job_name
from herringbone.records.index import TERMINAL
from herringbone_contract.errors import OptionError


@click.command()
@job_name
@click.option("--grace", type=float, metavar="SECONDS", help="how long the ranks may take to end (default: 110)")
@click.option("--wait", is_flag=True, help="return when the job is over")
@json_option("the job's description as JSON")
def command(name: str, grace: float | None, wait: bool, as_json: bool) -> int:
    if grace is not None and not 0 <= grace < math.inf:
        raise OptionError(f"--grace {grace}: give a number of seconds, 0 or more")
    job = attach(name)
    # Without --grace this is None: SageMaker refuses any value, other backends have a default.
    job.stop(grace)
    if wait:
        job.wait()
    print(json.dumps(job.describe()) if as_json else _state_line(job))
    return 0


def _state_line(job: TrainingJob) -> str:
    """Return what a user sees of a job that was asked to stop: it may go on until the end of its grace."""
    if (status := job.status) in TERMINAL:
        return f"job {job.name}: {status}"
    return f"job {job.name}: stopping (its end: herringbone logs -f {job.name})"
