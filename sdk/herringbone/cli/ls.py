"""`herringbone ls`: list the jobs that this machine knows."""

from __future__ import annotations

import json
import sys
import time
from datetime import datetime

import click

from herringbone.cli.commands import json_option
from herringbone.cli.tables import aligned
from herringbone.jobs.console import Console
from herringbone.jobs.index import JobRecord
from herringbone.jobs.listing import all_jobs

_HEAD = ("NAME", "STATUS", "CREATED", "SECONDS", "HOSTS")


@click.command()
@json_option("one JSON array")
def command(as_json: bool) -> int:
    # Messages about lost jobs go to standard error, so that --json stays one JSON array.
    records = all_jobs(Console(sys.stderr).say)
    if as_json:
        print(json.dumps([_summary(record) for record in records]))
        return 0
    for line in aligned([_HEAD, *map(_row, records)]):
        print(line)
    return 0


def _row(record: JobRecord) -> tuple[str, ...]:
    # A finished job has the same word as status and as secondary status, so show it once.
    status = record.status if record.status == record.secondary_status else f"{record.status}/{record.secondary_status}"
    created = datetime.fromtimestamp(record.created).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    # A job that still runs counts up to now.
    seconds = "" if record.started is None else f"{(record.ended or time.time()) - record.started:.1f}"
    return record.name, status, created, seconds, str(record.num_hosts)


def _summary(record: JobRecord) -> dict[str, object]:
    """Return a job as SageMaker's ListTrainingJobs describes it."""
    return {
        "TrainingJobName": record.name,
        "TrainingJobStatus": record.status,
        "SecondaryStatus": record.secondary_status,
        "CreationTime": datetime.fromtimestamp(record.created).astimezone().isoformat(),
        "TrainingEndTime": None
        if record.ended is None
        else datetime.fromtimestamp(record.ended).astimezone().isoformat(),
    }
