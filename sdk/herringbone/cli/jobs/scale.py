"""`herringbone scale`: go on with another number of hosts."""

from __future__ import annotations

import json
import sys
import time

import click

from herringbone.api.job import attach
from herringbone.cli.commands import json_option
from herringbone.cli.common import JOB_FAILED, OK
from herringbone.cli.names import job_name
from herringbone.records.index import TERMINAL, TRAINING

_POLL_SECONDS = 0.05


@click.command()
@job_name
@click.argument("hosts", type=click.IntRange(min=1))
@json_option("the job's description as JSON, once it has the hosts")
def command(name: str, hosts: int, as_json: bool) -> int:
    """Go on with another number of HOSTS, from min_instance_count to instance_count of the job.

    Ranks that ask should_stop, or whose loop does (Training, Trainer, Lightning), save and end; others get SIGTERM, and
    lose the steps since their last checkpoint. The next attempt begins at the newest checkpoint. It counts for none of
    max_retry_attempts. Waits for it; Ctrl-C ends the waiting alone.
    """
    job = attach(name)
    attempts = len(job.describe().get("Attempts", ()))
    now = job.scale(hosts)
    # Not into the JSON.
    print(f"job {name}: {now} -> {hosts} hosts: its ranks are asked to save and end", file=sys.stderr, flush=True)
    while True:
        description = job.describe()
        status = description["TrainingJobStatus"]
        new = description.get("Attempts", ())[attempts:]
        if status in TERMINAL or (new and description["SecondaryStatus"] == TRAINING):
            break
        time.sleep(_POLL_SECONDS)
    if as_json:
        print(json.dumps(description))
    elif new:
        print(f"job {name}: {description['SecondaryStatusTransitions'][-1]['StatusMessage']}")
    else:
        print(f"job {name}: {status} before it had {hosts} hosts")
    return OK if new else JOB_FAILED
