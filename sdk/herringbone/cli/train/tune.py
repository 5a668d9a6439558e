"""`herringbone tune`: search the hyperparameters of a job, and look at searches."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from herringbone.cli.commands import Decorated, JobCommand, json_option
from herringbone.cli.common import JOB_FAILED, OK, STOPPED, on_interrupt_option
from herringbone.cli.names import TuningName
from herringbone.cli.train.request import TUNING, JobFlags, job_flags, read_mapping, read_request_with
from herringbone.cli.train.tune_rm import command as remove
from herringbone.show.cells import shown_eta, shown_number
from herringbone.show.tables import aligned, show_table
from herringbone.system.interrupt import OnInterrupt
from herringbone.system.texts import NONE
from herringbone_contract.errors import JobNotFoundError, OptionError, near_words
from herringbone_contract.masking import printable

if TYPE_CHECKING:
    from herringbone.api.tuner import HyperparameterTuner
    from herringbone.plan.inputs import Inputs
    from herringbone.tuner.tuning import Tuning
    from herringbone.views.tunings.looks import Tunings

_RUN = "run"
_EXIT_CODES = {"Completed": OK, "Failed": JOB_FAILED, "Stopped": STOPPED}
_STYLES = {"Completed": "green", "Failed": "red", "Stopped": "yellow", "Stopping": "yellow", "InProgress": "cyan"}
_EPILOG = """\
\b
job.yaml holds a job, as for `herringbone run`, and a section tuning with the
keyword arguments of HyperparameterTuner:
  entry_point: train.py
  hyperparameters: {epochs: 5}
  metric_definitions: [{Name: accuracy, Regex: 'accuracy=(\\S+)'}]
  tuning:
    objective_metric_name: accuracy
    hyperparameter_ranges:
      lr: {continuous: [1e-4, 0.1], scaling_type: Logarithmic}
      layers: {integer: [1, 6]}
      optimizer: [sgd, adam]
    strategy: Bayesian      # or Random, Grid, Hyperband
    max_jobs: 20
    max_parallel_jobs: 2

Flags override the file. Arguments after -- are hyperparameters that all trials share.
"""


class TuneGroup(JobCommand, click.Group):
    """The group `tune`, whose verb `run` may be left out: `tune job.yaml` is `tune run job.yaml`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            near = near_words(args[0], self.commands)
            # A misspelt verb, not a script: those have an ending, or exist.
            if near and not Path(args[0]).suffix and not Path(args[0]).exists():
                raise click.UsageError(f"No such command {args[0]!r}. Did you mean {near[0]!r}?", ctx)
            args = [_RUN, *args]
        return click.Group.parse_args(self, ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if ctx.obj and not isinstance(command, JobCommand) and not ctx.resilient_parsing:
            raise click.UsageError(f"tune {name} takes no arguments after --", ctx)
        return name, command, rest

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - the signature is click's
        # In the order of this file, which is that of a search's life.
        return list(self.commands)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return click.Group.collect_usage_pieces(self, ctx)


_name = click.argument("name", metavar="NAME", type=TuningName())


@click.group(cls=TuneGroup)
def command() -> None:
    """Search the hyperparameters with which a job reaches the best value of a metric.

    `herringbone tune job.yaml` is short for `herringbone tune run job.yaml`. Each trial is a job of its own, with a
    log, metrics and a model. A search survives its terminal, and `attach` continues one whose process was killed.
    """


def tuning_flags(command: Decorated) -> Decorated:
    """Add the arguments that describe a trial, and those that describe the search: a decorator for `run` and `plan`."""
    add = click.option
    for decorate in reversed(
        (
            job_flags,
            add("--tuning", "tuning_file", metavar="FILE", type=click.Path(), help="the section tuning, from a file"),
            add("--strategy", metavar="NAME", help="Random, Grid, Bayesian or Hyperband (default: Bayesian)"),
            add("--max-jobs", type=int, metavar="N", help="the number of configurations (default: 1; of a grid, all)"),
            add("--max-parallel-jobs", type=int, metavar="N", help="the trials that run at once (default: 1)"),
            add("--seed", type=int, metavar="N", help="the same seed tries the same configurations"),
        )
    ):
        command = decorate(command)
    return command


@command.command(_RUN, cls=JobCommand, epilog=_EPILOG, short_help="start a search, and show its trials as they end")
@tuning_flags
@click.option("--detach", is_flag=True, help="print the tuning job's name and return; the search continues")
@on_interrupt_option()
@click.option("--quiet", is_flag=True, help="do not show the trials")
@json_option("end with the tuning job's description as JSON; progress on stderr")
@click.pass_obj
def run(
    script_arguments: list[str],
    /,
    detach: bool,
    on_interrupt: OnInterrupt | None,
    quiet: bool,
    as_json: bool,
    **flags: Any,
) -> int:
    """Start a search: `job.yaml` describes a trial, and its section `tuning` what to search."""
    tuner, inputs, name = _read(script_arguments, flags)
    tuning = tuner.fit(inputs, job_name=name, wait=False)
    if detach:
        print(json.dumps(tuning.describe()) if as_json else tuning.name)
        return OK
    return _follow(tuner, tuning, on_interrupt, quiet=quiet, as_json=as_json)


@command.command("plan", cls=JobCommand, short_help="show the search and one of its trials, and start nothing")
@tuning_flags
@json_option("the search and the plan of a trial as JSON")
@click.pass_obj
def plan(script_arguments: list[str], /, as_json: bool, **flags: Any) -> int:
    """Show the ranges of the search, and the plan of a trial in the middle of them; nothing starts."""
    from herringbone.views.tunings.shown import definition_rows

    tuner, inputs, name = _read(script_arguments, flags)
    trial = tuner.plan(inputs, name)
    # A trial's name is that of the tuning job and its number.
    definition = tuner.definition(name or trial.job_name.rpartition("-")[0])
    if as_json:
        print(json.dumps({"Tuning": msgspec.to_builtins(definition), "Trial": trial.to_dict()}))
        return OK
    print("\n".join(aligned([("tuning", ""), *definition_rows(definition)])))
    print(f"\na trial in the middle of the ranges:\n{trial.text()}")
    return OK


def _read(script_arguments: list[str], flags: dict[str, Any]) -> tuple[HyperparameterTuner, Inputs, str | None]:
    """Return the tuner and the inputs that the arguments describe, and the tuning job's name, if one is given."""
    from herringbone.api.tuner import HyperparameterTuner

    overrides = {name: flags.pop(name) for name in ("strategy", "max_jobs", "max_parallel_jobs")}
    overrides["random_seed"] = flags.pop("seed")
    file = flags.pop("tuning_file")
    # Before the job file is read, which changes the folder that paths in flags are relative to.
    section = None if file is None else read_mapping(Path(file))
    request = JobFlags(script_arguments=script_arguments, **flags)
    estimator, inputs, from_file = read_request_with(request, TUNING)
    settings = tuner_settings(section, from_file, overrides)
    fixed = estimator._request.arguments.hyperparameters
    if twice := sorted(fixed.keys() & (settings["hyperparameter_ranges"] or {}).keys()):
        # AWS's class takes an estimator with such a value and drops it; a file has no reason to say both.
        raise OptionError(
            f"hyperparameters: {twice[0]!r} has a value, and a range in {TUNING}.hyperparameter_ranges; leave one of"
            " them out"
        )
    tuner = HyperparameterTuner(estimator, **settings)
    return tuner, inputs, request.job_name


def tuner_settings(section: Any, from_file: Any, overrides: dict[str, Any]) -> dict[str, Any]:
    """Return the tuner's keyword arguments, from a file of `--tuning` or a section of the job file, and flags. Pure.

    Raises `OptionError` where both or neither describe the search, or where one has no objective.
    """
    from herringbone.cli.train.tuning_section import tuner_arguments

    if section is not None and from_file is not None:
        raise OptionError("--tuning: the job file has a section tuning as well; keep one of the two")
    chosen = from_file if section is None else section
    if chosen is None:
        raise OptionError(
            "tuning: nothing says what to search; add the section tuning to the job file, or name a file with its keys:"
            " --tuning FILE (herringbone tune run --help shows one)"
        )
    # A file for --tuning may also be a whole job file's section, with its title.
    chosen = chosen[TUNING] if isinstance(chosen, dict) and chosen.keys() == {TUNING} else chosen
    arguments = tuner_arguments(chosen) | {name: value for name, value in overrides.items() if value is not None}
    if "objective_metric_name" not in arguments:
        raise OptionError("tuning.objective_metric_name: missing; name the metric that the search makes best")
    return {"hyperparameter_ranges": None, **arguments}


@command.command("ls", short_help="list the tuning jobs")
@json_option("one JSON array, the newest tuning job first")
def list_tunings(as_json: bool) -> int:
    """List the tuning jobs that this machine knows, the newest first."""
    from herringbone.system.times import shown_ago
    from herringbone.tuner.look import search_summary

    looks, now = _looks().all(), time.time()
    if as_json:
        print(json.dumps([search_summary(look) | {"Strategy": look.definition.strategy} for look in looks]))
        return OK
    rows = [("NAME", "STATUS", "CREATED", "TRIALS", "ETA", "BEST", "OF", "STRATEGY")]
    for look in looks:
        summary = look.summary(now=now)
        winner = summary.best
        best = NONE if winner is None else f"{look.definition.metric} {shown_number(winner.objective)}"
        trials, job = f"{summary.over} of {summary.limit}", NONE if winner is None else winner.job
        cells = (look.name, look.status, shown_ago(now - look.created), trials, shown_eta(summary.eta), best, job)
        rows.append((*cells, look.definition.strategy))
    show_table(rows, shorten=0, cut=len(rows[0]) - 1, styles=_STYLES)
    for look in looks:
        if look.reason and not look.done:
            print(printable(f"{look.name}: {look.reason}"))
    return OK


@command.command("show", short_help="show the trials of a tuning job")
@_name
@click.option("--by-result", is_flag=True, help="the best trials first (default: in the order of their numbers)")
@json_option("the tuning job's description and its trials as JSON")
def show(name: str, by_result: bool, as_json: bool) -> int:
    """Show the trials of a tuning job: state, objective, tuned values and time; * marks the best one."""
    from herringbone.tuner.tuning import find_tuning
    from herringbone.views.tunings.shown import headline, trial_table

    tuning = find_tuning(name)
    look = tuning.look()
    definition, records = look.definition, look.trials
    if as_json:
        # msgspec writes null for NaN, the value of a trial that diverged; the standard library writes no JSON then.
        print(msgspec.json.encode({**tuning.describe(), "Trials": records}).decode())
        return OK
    print(f"{name}: {look.status}, {definition.strategy}: {headline(definition, records)}")
    if look.reason:
        print(look.reason)
    if records:
        print()
        show_table(trial_table(definition, records, now=time.time(), by_result=by_result), styles=_STYLES)
    return OK


@command.command("best", short_help="show the best trial of a tuning job")
@_name
@json_option("the best trial's job under SageMaker's key names, with its objective and values, as JSON")
def best(name: str, as_json: bool) -> int:
    """Show the best trial of a tuning job: its job, objective, values and model; the exit code is 1 without one."""
    from herringbone.api.job import attach
    from herringbone.tuner.look import best_of
    from herringbone.tuner.tuning import find_tuning
    from herringbone.views.tunings.shown import shown_value

    tuning = find_tuning(name)
    definition = tuning.definition()
    winner = best_of(definition, tuning.trials())
    if winner is None:
        print(f"tuning job {name} has no trial with a result yet: herringbone tune show {name}", file=sys.stderr)
        return JOB_FAILED
    job, gone = None, ""
    try:
        job = attach(winner.job)
    except JobNotFoundError:
        gone = " was removed, with its log and its model"
    if as_json:
        result = {"Objective": {definition.metric: winner.objective}, "TunedHyperParameters": winner.values}
        described = {"TrainingJobName": winner.job, "Removed": True} if job is None else job.describe()
        print(msgspec.json.encode({**described, **result}).decode())
        return OK
    rows = [("job", f"{winner.job}{gone}"), (definition.metric, shown_number(winner.objective))]
    rows += [(key, shown_value(value)) for key, value in winner.values.items()]
    rows += [(definition.resource_name or "resource", str(winner.resource))] if winner.resource is not None else []
    rows += [("model", job.model_data)] if job is not None and job.model_data else []
    print("\n".join(aligned([(name, printable(text)) for name, text in rows])))
    return OK


@command.command("stop", short_help="stop a tuning job and its running trials")
@_name
@click.option("--wait", is_flag=True, help="return when the tuning job is over")
@json_option("the tuning job's description as JSON")
def stop(name: str, wait: bool, as_json: bool) -> int:
    """Stop a tuning job: no trial starts any more, and those that run are stopped as `herringbone stop` does."""
    from herringbone.tuner.tuning import find_tuning

    tuning = find_tuning(name)
    tuning.stop()
    if wait:
        tuning.wait()
    description = tuning.describe()
    text = f"tuning job {name}: {description['HyperParameterTuningJobStatus']}"
    print(json.dumps(description) if as_json else text)
    return OK


@command.command("attach", short_help="go on with a tuning job, and show its trials as they end")
@_name
@on_interrupt_option(default="detach")
@json_option("end with the tuning job's description as JSON; progress on stderr")
def attach_to(name: str, on_interrupt: OnInterrupt, as_json: bool) -> int:
    """Follow a tuning job until it is over; one whose process was killed goes on where it was.

    Settings that are stored masked, because they are secrets, are asked for by an error; give those in Python:
    HyperparameterTuner.attach(NAME, environment={...}).
    """
    from herringbone.api.tuner import HyperparameterTuner
    from herringbone.tuner.tuning import find_tuning

    return _follow(HyperparameterTuner.attach(name), find_tuning(name), on_interrupt, quiet=False, as_json=as_json)


command.add_command(remove)


def _follow(
    tuner: HyperparameterTuner, tuning: Tuning, on_interrupt: OnInterrupt | None, *, quiet: bool, as_json: bool
) -> int:
    """Wait for a search, show its trials, and return the exit code of its end."""
    from herringbone.cli.train.tuning_progress import TuningProgress

    try:
        with TuningProgress(tuning, sys.stderr if as_json else sys.stdout, quiet=quiet) as progress:
            tuner.wait(on_interrupt=on_interrupt, say=progress.say)
    finally:
        # Also after a failure or Ctrl-C: a program that reads --json always gets the description.
        if as_json:
            print(json.dumps(tuning.describe()), flush=True)
    return _EXIT_CODES.get(tuning.describe()["HyperParameterTuningJobStatus"], STOPPED)


def _looks() -> Tunings:
    from herringbone.records.home import find_home
    from herringbone.views.tunings.looks import Tunings

    return Tunings(find_home())
