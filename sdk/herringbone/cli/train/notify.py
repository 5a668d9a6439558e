"""`herringbone notify`: send the notices of a job that its destinations do not have, or try the destinations."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import click

from herringbone.cli.commands import json_option
from herringbone.cli.common import JOB_FAILED, OK
from herringbone.cli.names import JobName
from herringbone.cli.train.request import JobFlags, is_job_file, read_request
from herringbone_contract.errors import HerringboneError, InputError
from herringbone_contract.masking import printable


class _JobOrFile(JobName):
    """The name of a job, or a job file."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return value if is_job_file(value) else super().convert(value, param, ctx)


@click.command()
@click.argument("job", metavar="NAME|job.yaml", type=_JobOrFile())
@click.option("--test", is_flag=True, help="send each destination of the job a test (of a job file: always)")
@json_option("the destinations as a list of JSON objects")
def command(job: str, *, test: bool, as_json: bool) -> int:
    """Send the notices of a job that its destinations do not have.

    While a job runs, a process of its own sends them; after a power failure, this does. With a job file, or with
    --test, each destination of the option notify gets a test instead: a wrong address shows before a weekend does.
    """
    from herringbone.api.job import attach
    from herringbone.trackers.export import notices_of, send_notices

    if not test and not is_job_file(job):
        sent = [(export.destination, export.values) for export in send_notices(job, attach(job).describe)]
        if as_json:
            print(json.dumps([{"destination": str(name), "sent": values} for name, values in sent], indent=2))
        else:
            for name, values in sent:
                print(printable(f"job {job}: {values} sent to {name}"))
        return OK
    from herringbone.plan.notify import absolute_notify
    from herringbone.records.home import find_home
    from herringbone.records.index import JobIndex
    from herringbone.trackers.notifier import send_test

    if is_job_file(job):
        destinations, folder = read_request(JobFlags(job_or_script=job))[0].options.notify, Path.cwd()
    else:
        plan = JobIndex(find_home().index).get(job).plan_dict
        destinations, folder = notices_of(plan), Path(plan.get("folder", "/"))
    if not destinations:
        raise InputError(f"{job}: it has no option notify, so nobody gets word of it")
    errors: dict[str, str] = {}
    for destination in absolute_notify(destinations, folder):
        try:
            send_test(destination, folder, time.time())
            errors[str(destination)] = ""
        except HerringboneError as error:
            errors[str(destination)] = printable(str(error))
    if as_json:
        print(json.dumps([{"destination": name, "error": why or None} for name, why in errors.items()], indent=2))
    else:
        for name, why in errors.items():
            text = f"herringbone: {why}" if why else printable(f"a test was sent to {name}")
            print(text, file=sys.stderr if why else sys.stdout)
    return JOB_FAILED if any(errors.values()) else OK
