"""`herringbone plan`: show the plan of the job that `run` would start, and what a measured step predicts."""

from __future__ import annotations

import json
from typing import Any

import click

from herringbone.cli.commands import JobCommand, json_option
from herringbone.cli.common import nothing_started
from herringbone.cli.train.faults import forecast_of, show_faults
from herringbone.cli.train.measure import measure_flags, read_measures, show_prediction
from herringbone.cli.train.request import EPILOG, JobFlags, job_flags, read_request
from herringbone_contract.errors import UnsupportedError


@click.command(cls=JobCommand, epilog=EPILOG)
@job_flags
@measure_flags
@click.option(
    "--faults",
    metavar="mtbf=TIME,...",
    help="also show what faults cost: mtbf=30d of a host, or 12h/job; with save, blocked, load, detect, restart, step,"
    " every=STEPS",
)
@click.option("--verbose", "-v", is_flag=True, help="show internal hyperparameters, too")
@click.option("--server", is_flag=True, help="let the service try the request; nothing is created (k8s:)")
@json_option("the plan as JSON")
@click.pass_obj
@nothing_started()
def command(
    script_arguments: list[str],
    /,
    faults: str | None,
    verbose: bool,
    server: bool,
    as_json: bool,
    measuring: dict[str, Any],
    **flags: Any,
) -> int:
    words = None
    if faults is not None:
        # Imported here, for few plans; and read before the script is measured.
        from herringbone.prediction.faults.options import parse_faults

        words = parse_faults(faults)
    measures = read_measures(measuring)
    request = JobFlags(script_arguments=script_arguments, measures=measures.base is not None, **flags)
    estimator, inputs = read_request(request)
    # Before the job itself, which may be refused: then a change of it is what the user looks for.
    others = {
        name: estimator.plan(inputs, request.job_name, measure=measure).prediction
        for name, measure in measures.others.items()
    }
    try:
        plan = estimator.plan(inputs, request.job_name, measure=measures.base or False)
    except UnsupportedError:
        if not as_json:
            show_prediction(None, others, measures.titles)
        raise
    if server:
        # Imported here: backends are imported when a job needs one.
        from herringbone.backends.registry import backend_named

        backend_named(plan.backend).try_out(plan)
    forecast = None if words is None else forecast_of(plan, words)
    if as_json:
        from msgspec import to_builtins

        of_faults = {} if forecast is None else {"faults": to_builtins(forecast)}
        print(json.dumps({**plan.to_dict(), **to_builtins(others), **of_faults}))
        return 0
    print(plan.text(verbose=verbose))
    if server:
        print(f"{'server:':<18} the service accepts the request; nothing was created")
    show_prediction(plan.prediction, others, measures.titles)
    if forecast is not None:
        show_faults(forecast)
    return 0
