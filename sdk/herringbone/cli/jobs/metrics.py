"""`herringbone metrics`: show the metrics of a job, or of several side by side."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from herringbone.cli.commands import json_option
from herringbone.cli.names import job_names
from herringbone.show.cells import shown_number
from herringbone.show.tables import aligned
from herringbone_contract.masking import printable

if TYPE_CHECKING:
    from datetime import datetime

    from herringbone.events.metrics import Run
    from herringbone.events.series import Value
    from herringbone_contract.events.format import Event


@click.command()
@job_names
@click.option(
    "--best",
    nargs=2,
    type=(click.Choice(("max", "min")), str),
    metavar="max|min METRIC",
    help="show the best value of this metric, and the job that has it first",
)
@click.option("--follow", is_flag=True, help="show new values until the job is over, and then the table; of one job")
@click.option("--csv", "as_csv", is_flag=True, help="one line per value, as CSV")
@json_option("one JSON array: a job's settings, and the last, smallest and largest value of each metric")
def command(names: tuple[str, ...], *, best: Any, follow: bool, as_csv: bool, as_json: bool) -> int:
    """Show the metrics of a job, also while it runs: what its script reports, and what its log shows.

    Of one job the table has the last, the smallest and the largest value of each metric. Several jobs stand side by
    side, below the settings in which they differ. Behind each value are its number among the values of its rank,
    and the seconds since the start of the job.
    """
    from herringbone.api.job import attach
    from herringbone.backends.facts import settings_of_job
    from herringbone.backends.registry import backend_of_job
    from herringbone.events.metrics import Run, csv_lines
    from herringbone.events.series import summarize
    from herringbone.records.download import removed_log

    if as_csv and (as_json or best):
        raise click.UsageError("--csv shows every value; leave out --json and --best.")
    if follow and (len(names) > 1 or as_csv or as_json or best):
        raise click.UsageError("--follow shows one job; leave out --csv, --json, --best and other names.")
    jobs = {name: attach(name) for name in names}
    for job in jobs.values() if follow else ():
        for event in job.events(follow=True):
            for line in new_values(event, job.started):
                print(printable(line), flush=True)
    values = {name: job.metrics() for name, job in jobs.items()}
    for name, metrics in values.items():
        if not metrics and (removed := removed_log(name)):
            print(removed, file=sys.stderr)
        elif not metrics:
            defined = (jobs[name].describe().get("AlgorithmSpecification") or {}).get("MetricDefinitions")
            reason = "call herringbone.log_metrics in its script, or give metric_definitions"
            if defined:
                reason = "its metric_definitions found no number; the end of its log says what they matched"
            print(f"job {name} has no metrics: {reason}", file=sys.stderr)
    if as_csv:
        print("\n".join(map(printable, csv_lines(values))))
        return 0
    runs = [
        Run(
            name=name,
            status=job.status,
            started=job.started,
            settings=settings_of_job(backend_of_job(name), name),
            metrics=summarize(values[name].series),
        )
        for name, job in jobs.items()
    ]
    if as_json:
        print(json.dumps([_to_json(run, jobs[run.name].hyperparameters) for run in runs]))
    else:
        print("\n".join(map(printable, tables(runs, best))))
    return 0


def new_values(event: Event, started: datetime | None) -> list[str]:
    """Return the line that shows the newest value of a `metrics` event; [] for any other event. Pure.

    >>> new_values({"kind": "metrics", "t": 1.0, "name": "loss", "values": [2, 0.5], "step": 10, "by": 10}, None)
    ['loss 0.5 (step 20)']
    """
    from herringbone.events.columns import Columns
    from herringbone.events.metrics import shown_after

    columns = Columns()
    columns.take({"source": "", **event})
    lines = []
    for metric in list(columns.metrics)[-1:]:
        notes = [] if metric.step is None else [f"step {metric.step}"]
        if started is not None:
            notes.append(shown_after(metric.time, started))
        if metric.host:
            notes.append(metric.host if metric.rank is None else f"{metric.host}:{metric.rank}")
        lines.append(f"{metric.name} {shown_number(metric.value)}" + (f" ({', '.join(notes)})" if notes else ""))
    return lines


def tables(runs: Sequence[Run], best: Any = None) -> list[str]:
    """Return the lines that show one job, or several side by side. Pure."""
    from herringbone.events.metrics import comparison, one_run

    if len(runs) == 1 and best is None:
        return aligned(one_run(runs[0]))
    shown = [aligned(rows) for rows in comparison(runs, best) if rows]
    return [line for table in shown for line in (*table, "")][:-1]


def _to_json(run: Run, hyperparameters: Mapping[str, str]) -> dict[str, object]:
    return {
        "TrainingJobName": run.name,
        "TrainingJobStatus": run.status,
        "HyperParameters": dict(hyperparameters),
        "Settings": dict(run.settings),
        "Metrics": [
            {
                "MetricName": name,
                "Count": summary.count,
                "Last": _value_to_json(summary.last),
                "Min": _value_to_json(summary.least),
                "Max": _value_to_json(summary.most),
            }
            for name, summary in run.metrics.items()
        ],
    }


def _value_to_json(value: Value) -> dict[str, object]:
    from herringbone.events.metrics import json_number

    return {"Value": json_number(value.value), "Number": value.number, "Timestamp": value.time.isoformat()}
