"""Make the request that all trials of a search share, and of it the request of each trial. Pure.

request -> shared_request -> stored in tuning.json, secrets masked
              |              sent to the searcher over standard input, as it is
              v
        trial_request(proposal) -> api.planning.start_request
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from herringbone.plan.options.typed import MetricDefinition
from herringbone.plan.request import JobRequest, request_of, with_code, with_hyperparameters, with_options
from herringbone_contract.errors import near_words

# The first group of an expression that takes a value.
_GROUP = re.compile(r"(?<!\\)\((?!\?)")

if TYPE_CHECKING:
    from herringbone.plan.source import SourceCode
    from herringbone.tuner.definition import TuningDefinition
    from herringbone.tuner.trials import Proposal


def shared_request(
    plan: JobRequest, asked: JobRequest, static: Mapping[str, Any], code: SourceCode | None
) -> JobRequest:
    """Return what all trials share, of the plan of one of them: without its own folders and values, its code copied.

    `asked` is the user's request with absolute paths, `static` are the hyperparameters that are not tuned.
    """
    shared = with_options(
        with_hyperparameters(request_of(plan), dict(static)),
        checkpoint_s3_uri=asked.options.checkpoint_s3_uri,
        tensorboard_output_config=asked.options.tensorboard_output_config,
    )
    if code is not None:
        # A copy of a lone script has no folder of its own.
        shared = with_code(shared, code.arguments.get("source_dir"), code.arguments["entry_point"])
        shared = with_options(shared, include_secrets=code.secrets)
    # A trial whose GPUs are taken waits.
    return msgspec.structs.replace(shared, queue=True)


def with_metrics(given: Sequence[MetricDefinition], own: Sequence[MetricDefinition]) -> tuple[MetricDefinition, ...]:
    """Return the tuner's metric definitions, and those of the estimator whose names the tuner does not define."""
    names = {definition.name for definition in given}
    return (*given, *(definition for definition in own if definition.name not in names))


def own_metrics(request: JobRequest, objective: str) -> tuple[MetricDefinition, ...]:
    """Return the estimator's metric definitions, and the objective's where the framework itself logs it.

    `validation:rmse` of XGBoost is in its log as `[3]\tvalidation-rmse:0.5`; AWS's image knows such metrics, too.
    """
    given = request.options.metric_definitions
    channel, colon, name = objective.partition(":")
    if request.estimator != "XGBoost" or not colon:
        return given
    logged = MetricDefinition(name=objective, regex=rf"\[\d+\].*\b{re.escape(channel)}-{re.escape(name)}:(\S+)")
    return with_metrics(given, (logged,))


def objective_notes(metric: str, definitions: Sequence[MetricDefinition]) -> tuple[str, ...]:
    """Return what may keep a search from the values of its objective; () without metric definitions.

    >>> objective_notes("los", (MetricDefinition(name="loss", regex="loss=(.+)"),))
    ("objective_metric_name: 'los' is none of the metric_definitions' names (loss); ...did you mean 'loss'?",)
    """
    names = [definition.name for definition in definitions]
    if names and metric not in names:
        near = near_words(metric, names)
        hint = f"did you mean {near[0]!r}?" if near else "let the script send it with log_metrics"
        return (
            f"objective_metric_name: {metric!r} is none of the metric_definitions' names ({', '.join(names)}); unless"
            f" the script sends it itself, {hint}",
        )
    regexes = [definition.regex for definition in definitions if definition.name == metric]
    return tuple(
        f"metric_definitions: {metric}: the group of Regex {regex!r} does not take all of 2e-05, as Python prints"
        r" 0.00002; write (\S+)"
        for regex in regexes
        if _misses_exponents(regex)
    )


def _misses_exponents(regex: str) -> bool:
    """Return whether the first group takes decimals such as 0.5, and no exponent; False for a group in groups."""
    opened = _GROUP.search(regex)
    group = opened and re.compile(r"[^()]*(?=\))").match(regex, opened.end())
    if not group:
        return False
    try:
        pattern = re.compile(group[0])
    except re.error:
        return False
    return bool(pattern.fullmatch("0.5")) and not pattern.fullmatch("2e-05")


def trial_request(
    shared: JobRequest, definition: TuningDefinition, proposal: Proposal, *, job: str, checkpoints: str | None
) -> JobRequest:
    """Return the request of one trial.

    `checkpoints` is the folder of this trial's checkpoints; None for a trial without one.
    """
    values = {**shared.arguments.hyperparameters, **proposal.values}
    if proposal.resource is not None and definition.resource_name is not None:
        values[definition.resource_name] = proposal.resource
    trial = with_options(with_hyperparameters(shared, values), checkpoint_s3_uri=checkpoints)
    if (tensorboard := shared.options.tensorboard_output_config) is None:
        return trial
    # TensorBoard takes each folder for one run.
    own = msgspec.structs.replace(tensorboard, s3_output_path=f"{tensorboard.s3_output_path}/{job}")
    return with_options(trial, tensorboard_output_config=own)


def checkpoint_folder(uri: str | None, proposal: Proposal, *, job: str, own: Path) -> str | None:
    """Return the folder of a trial's checkpoints: in `uri`, the user's, or `own` where later trials continue this one.

    Each trial has a folder of its own: in one folder, trials would continue each other's training.

    >>> from herringbone.tuner.trials import Proposal
    >>> checkpoint_folder("/data/c", Proposal(0, {}), job="digits-001", own=Path("/x"))
    '/data/c/digits-001'
    """
    if uri is not None:
        return f"{uri.rstrip('/')}/{job}"
    return str(own) if proposal.resource is not None else None
