"""`herringbone describe`: show everything that is known about a job."""

from __future__ import annotations

import json

import click
import yaml

from herringbone.cli.commands import json_option
from herringbone.cli.names import job_name
from herringbone.jobs.job import attach


@click.command()
@job_name
@json_option("as JSON; else as YAML")
def command(name: str, as_json: bool) -> int:
    described = attach(name).describe()
    # Unsorted: `describe` puts the name and the status first.
    print(json.dumps(described) if as_json else yaml.safe_dump(described, sort_keys=False, width=120).rstrip())
    return 0
