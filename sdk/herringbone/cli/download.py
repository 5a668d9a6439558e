"""`herringbone download`: unpack a job's model."""

from __future__ import annotations

import json

import click

from herringbone.cli.commands import json_option
from herringbone.cli.names import job_name
from herringbone.jobs.job import attach


@click.command()
@job_name
@click.argument("into", required=False, metavar="[FOLDER]", type=click.Path())
@json_option("the folder as JSON")
def command(name: str, into: str | None, as_json: bool) -> int:
    """Unpack a job's model into a new FOLDER (default: NAME-model)."""
    folder = attach(name).download_model(into or f"{name}-model")
    print(json.dumps({"folder": str(folder)}) if as_json else folder)
    return 0
