"""`herringbone repack`: pack the model of a job whose controller could not."""

from __future__ import annotations

import json
import sys

import click

from herringbone.api.job import attach
from herringbone.cli.commands import json_option
from herringbone.cli.names import job_name
from herringbone.show.console import Console


@click.command()
@job_name
@json_option("the model's path as JSON")
def command(name: str, as_json: bool) -> int:
    model = attach(name).repack(Console(sys.stderr).say)
    print(json.dumps({"model": str(model)}) if as_json else model)
    return 0
