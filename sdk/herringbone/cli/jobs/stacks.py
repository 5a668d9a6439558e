"""`herringbone stacks`: show where each rank of a running job is."""

from __future__ import annotations

import json

import click

from herringbone.api.job import attach
from herringbone.cli.commands import json_option
from herringbone.cli.names import job_name


@click.command()
@job_name
@json_option("the groups of ranks as JSON")
def command(name: str, as_json: bool) -> int:
    """Show the Python stacks of all ranks of a running job.

    Ranks at the same place are shown together. The rank that keeps the others waiting comes first. The job continues.
    """
    stacks = attach(name).stacks()
    print(json.dumps(stacks.to_json()) if as_json else stacks.text.replace("stacks: ", ""))
    return 0
