"""`herringbone export`: send the metrics of jobs to trackers."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from herringbone.cli.commands import json_option
from herringbone.cli.common import JOB_FAILED, OK
from herringbone.cli.names import job_names
from herringbone_contract.errors import HerringboneError
from herringbone_contract.masking import printable

if TYPE_CHECKING:
    from herringbone.trackers.exporter import Export

_PROGRESS_SECONDS = 2.0


@click.command()
@job_names
@click.option(
    "--to",
    multiple=True,
    metavar="DESTINATION",
    help="mlflow:http://HOST:PORT/EXPERIMENT, tensorboard:FOLDER, wandb:PROJECT or trackio:PROJECT; may be given "
    "several times (default: the job's option track)",
)
@click.option("--system", is_flag=True, help="also the CPU, memory, disks, network and GPUs of the hosts")
@json_option("one JSON array: each job and destination, with the numbers of values and the address of the run")
def command(names: tuple[str, ...], *, to: tuple[str, ...], system: bool, as_json: bool) -> int:
    """Send the metrics of jobs to trackers.

    A second call sends what is new: values of a job that runs, or those that a tracker could not take. If one job
    cannot be exported, the others are.
    """
    from herringbone.api.job import attach
    from herringbone.trackers.export import export_job

    rows: list[dict[str, object]] = []
    for name in names:
        try:
            exports = export_job(name, attach(name).describe, to or None, system=system, progress=_progress(name))
        except HerringboneError as error:
            if len(names) == 1:
                raise
            rows.append({"TrainingJobName": name, "Error": str(error)})
            print(printable(f"herringbone: job {name}: {error}"), file=sys.stderr)
            continue
        for export in exports:
            rows.append(_to_json(name, export))
            if not as_json:
                print(printable(export_line(name, export)))
    if as_json:
        print(json.dumps(rows))
    return JOB_FAILED if any("Error" in row for row in rows) else OK


def export_line(name: str, export: Export) -> str:
    """Return the line about one export. Pure.

    >>> from herringbone.trackers.exporter import Export
    >>> export_line("digits-1", Export("tensorboard:/runs", 2, 1200, "/runs/digits-1", over=True))
    'job digits-1: 2 new values, 1,200 in all, at /runs/digits-1'
    """
    values = "no new values" if not export.values else f"{export.values:,} new value{'s' * (export.values != 1)}"
    line = f"job {name}: {values}, {export.total:,} in all, at {export.run or export.destination}"
    if not export.over:
        line += "; the job is not over"
    if export.left_out:
        line += f"; {export.left_out:,} values left out: the job has more metrics than a tracker can show"
    return line


def _progress(name: str) -> Callable[[int], None]:
    shown = time.monotonic()

    def show(values: int) -> None:
        nonlocal shown
        if time.monotonic() - shown >= _PROGRESS_SECONDS:
            shown = time.monotonic()
            print(f"job {name}: {values:,} values so far", file=sys.stderr)

    return show


def _to_json(name: str, export: Export) -> dict[str, object]:
    return {
        "TrainingJobName": name,
        "To": export.destination,
        "Values": export.values,
        "Total": export.total,
        "Run": export.run,
        "Over": export.over,
        "LeftOut": export.left_out,
    }
