"""`herringbone report`: write the page of a job into one file."""

from __future__ import annotations

import json
from pathlib import Path

import click

from herringbone.api.job import attach
from herringbone.cli.commands import json_option
from herringbone.cli.names import job_name
from herringbone_contract.masking import printable


@click.command()
@job_name
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="the file (default: NAME.html in this folder)",
)
@json_option("the path of the file and its size, as one JSON object")
def command(name: str, output: Path | None, as_json: bool) -> int:
    """Write the page of a job, which may still run, into one HTML file of at most 2 MB that needs no server."""
    path = attach(name).report(output or f"{name}.html")
    if as_json:
        print(json.dumps({"path": str(path.absolute()), "bytes": path.stat().st_size}))
    else:
        print(printable(str(path)))
    return 0
