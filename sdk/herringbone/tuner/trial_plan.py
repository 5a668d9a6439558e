"""Make the plan that all trials share, and of it the settings of each trial. Pure.

estimator.plan(inputs) -> shared_plan -> stored in tuning.json, secrets masked
                            |            sent to the searcher over standard input, as it is
                            v
                      trial_settings(record) -> api.tuning.trials: an estimator, and its fit
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from herringbone.plan.options.typed import ESTIMATOR_ARGUMENTS, MetricDefinition, changed_options, parse_options
from herringbone.plan.plan import JobPlan
from herringbone.records import again

if TYPE_CHECKING:
    from herringbone.plan.source import SourceCode
    from herringbone.tuner.definition import TuningDefinition
    from herringbone.tuner.trials import Proposal


def shared_plan(
    plan: JobPlan, *, static: Mapping[str, Any], code: SourceCode | None, checkpoints: str | None
) -> JobPlan:
    """Return the plan of a trial as the plan of all: its own hyperparameters without tuned ones, and its code copied.

    `static` are the user's hyperparameters that are not tuned, `checkpoints` is the user's `checkpoint_s3_uri`.
    """
    arguments = {name: value for name, value in plan.arguments.items() if name != "hyperparameters"}
    if static:
        arguments["hyperparameters"] = dict(static)
    options = msgspec.structs.replace(plan.options, checkpoint_s3_uri=checkpoints)
    if code is not None:
        arguments = {**{k: v for k, v in arguments.items() if k != "source_dir"}, **code.arguments}
        options = msgspec.structs.replace(options, dependencies=(), git_config=None, include_secrets=code.secrets)
    return msgspec.structs.replace(plan, arguments=arguments, options=options, source=code)


def with_metrics(given: Sequence[MetricDefinition], own: Sequence[MetricDefinition]) -> tuple[MetricDefinition, ...]:
    """Return the tuner's metric definitions, and those of the estimator whose names the tuner does not define."""
    names = {definition.name for definition in given}
    return (*given, *(definition for definition in own if definition.name not in names))


def with_changes(plan: JobPlan, changes: Mapping[str, Any]) -> JobPlan:
    """Return the plan with arguments of the estimator that the user gives again: secrets that are stored masked.

    Hyperparameters and variables are added, all else is replaced. Raises `OptionError` for an unknown option.
    """
    if not changes:
        return plan
    options = changed_options(plan.options)
    given = again.merged({"environment": {}, "hyperparameters": {}, **plan.arguments, **options}, changes)
    arguments = {**plan.arguments, **{name: given[name] for name in changes if name in ESTIMATOR_ARGUMENTS}}
    chosen = {name: given[name] for name in changes if name not in ESTIMATOR_ARGUMENTS}
    return msgspec.structs.replace(plan, arguments=arguments, options=parse_options({**options, **chosen}))


def shared_settings(plan: JobPlan, arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the arguments of the estimator that all trials share; `arguments` replace those that the plan stores."""
    settings = again.settings_of(plan, plan.arguments if arguments is None else arguments)
    # The copy of the code has its dependencies inside, and defaults need not be given.
    return {name: value for name, value in settings.items() if value not in (None, (), [], {})}


def trial_settings(
    settings: Mapping[str, Any],
    definition: TuningDefinition,
    proposal: Proposal,
    *,
    job: str,
    checkpoints: str | None,
) -> dict[str, Any]:
    """Return the arguments of one trial's estimator.

    `checkpoints` is the folder of this trial's checkpoints; None for a trial without one.
    """
    hyperparameters = {**settings.get("hyperparameters", {}), **proposal.values}
    if proposal.resource is not None and definition.resource_name is not None:
        hyperparameters[definition.resource_name] = proposal.resource
    trial = {**settings, "hyperparameters": hyperparameters}
    if checkpoints is not None:
        trial["checkpoint_s3_uri"] = checkpoints
    if (tensorboard := settings.get("tensorboard_output_config")) is not None:
        # TensorBoard takes each folder for one run.
        trial["tensorboard_output_config"] = {**tensorboard, "s3_output_path": f"{tensorboard['s3_output_path']}/{job}"}
    return trial


def checkpoint_folder(settings: Mapping[str, Any], proposal: Proposal, *, job: str, own: Path) -> str | None:
    """Return the folder of a trial's checkpoints: in the user's, or `own` where later trials continue this one.

    Each trial has a folder of its own: in one folder, trials would continue each other's training.

    >>> from herringbone.tuner.trials import Proposal
    >>> checkpoint_folder({"checkpoint_s3_uri": "/data/c"}, Proposal(0, {}), job="digits-001", own=Path("/x"))
    '/data/c/digits-001'
    """
    uri = settings.get("checkpoint_s3_uri")
    if uri is not None:
        return f"{str(uri).rstrip('/')}/{job}"
    return str(own) if proposal.resource is not None else None
