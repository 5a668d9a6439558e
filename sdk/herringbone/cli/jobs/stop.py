"""`herringbone stop`: stop a job."""

from __future__ import annotations

import json
import math

import click

from herringbone.api.job import attach
from herringbone.cli.commands import json_option
from herringbone.cli.names import job_name
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
    print(json.dumps(job.describe()) if as_json else f"job {job.name}: {job.status}")
    return 0
