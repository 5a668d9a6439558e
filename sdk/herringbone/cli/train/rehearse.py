"""`herringbone rehearse`: break short runs of a job in every way, and compare each with an undisturbed one."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import click

from herringbone.cli.commands import JobCommand, json_option
from herringbone.cli.common import JOB_FAILED, OK, complain, nothing_started
from herringbone.cli.train.request import JobFlags, job_flags, read_request
from herringbone_contract.errors import InputError

_EPILOG = """\
The job runs as its file says, so let what follows -- make it short: herringbone rehearse job.yaml -- --steps 40. Its
script saves checkpoints more than once in that time.

Exit codes: 0 if each run with a fault gave the undisturbed run's results, 1 if not.
"""


@click.command(cls=JobCommand, epilog=_EPILOG)
@job_flags
@click.option("--fault", "faults", multiple=True, metavar="FAULT", help="only this fault; may be given several times")
@click.option("--across", metavar="TYPES", help="the instance types to rehearse on, as local_process,local")
@click.option("--report", type=click.Path(path_type=Path), metavar="FILE", help="a copy of the report, an HTML file")
@click.option("--yes", is_flag=True, help="start jobs of ml.*, which AWS bills")
@json_option("the result as one JSON object; progress on stderr")
@click.pass_obj
def command(
    script_arguments: list[str],
    /,
    faults: tuple[str, ...],
    across: str | None,
    report: Path | None,
    yes: bool,
    as_json: bool,
    **flags: Any,
) -> int:
    """Run a job undisturbed, twice, and once for each fault; compare each run with the undisturbed ones.

    The faults are rank-killed, host-lost, controller-killed, machine-frozen, link-cut, disk-full, save-torn,
    stop-resume, fewer-hosts, other-layout and preemption. Each comes after the first checkpoint. A job that ends is
    resumed as `run --resume` does. Each run is a job, with checkpoints of its own and without trackers.
    """
    from herringbone.show.tables import show_table

    if report is not None and not report.absolute().parent.is_dir():
        raise InputError(f"--report {report}: the folder {report.absolute().parent} does not exist; make it first")
    # Programs that run this one end it so; the job that goes on now ends, too, as at Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    request = JobFlags(script_arguments=script_arguments, **flags)
    estimator, inputs = read_request(request)
    types = [word.strip() for word in across.split(",")] if across is not None else ()
    with nothing_started():
        result = estimator.rehearse(inputs, faults, across=types, job_name=request.job_name, yes=yes)
    if report is not None:
        report.write_bytes(Path(result.report).read_bytes())
    if as_json:
        print(json.dumps(result.to_dict()))
    else:
        show_table(result.table, cut=len(result.table[0]) - 1)
        complain(f"rehearsal {result.name}: {result.summary}; report: {report or result.report}")
    sys.stdout.flush()
    return OK if result.ok else JOB_FAILED
