"""`herringbone plan`: show the plan of the job that `run` would start."""

from __future__ import annotations

import json
from typing import Any

import click

from herringbone.cli.commands import JobCommand, json_option
from herringbone.cli.request import EPILOG, JobFlags, job_flags, read_request


@click.command(cls=JobCommand, epilog=EPILOG)
@job_flags
@click.option("--verbose", "-v", is_flag=True, help="show internal hyperparameters, too")
@json_option("the plan as JSON")
@click.pass_obj
def command(script_arguments: list[str], /, verbose: bool, as_json: bool, **flags: Any) -> int:
    request = JobFlags(script_arguments=script_arguments, **flags)
    estimator, inputs = read_request(request)
    plan = estimator.plan(inputs, request.job_name)
    print(json.dumps(plan.to_dict()) if as_json else plan.text(verbose=verbose))
    return 0
