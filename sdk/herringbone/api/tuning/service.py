"""Create a tuning job of SageMaker from estimators: plan the trials of each, and submit them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from herringbone.api.planning import backend_of, plan_request
from herringbone.aws.session import AwsSession
from herringbone.code.git import checked_out
from herringbone.plan.options.strategy_names import AUTO
from herringbone.plan.request import JobRequest, with_hyperparameters, with_options
from herringbone.records.home import find_home
from herringbone.show.console import Console
from herringbone.tuner.configs import tag_list
from herringbone.tuner.service.request import TuningSettings
from herringbone.tuner.service.submission import PlannedPart, planned_request, submit_tuning
from herringbone.tuner.trial_plan import objective_notes, with_metrics
from herringbone_contract.errors import OptionError, UnsupportedError

if TYPE_CHECKING:
    from herringbone.code.git import Checkout
    from herringbone.plan.options.typed import MetricDefinition
    from herringbone.plan.plan import JobPlan
    from herringbone.tuner.definition import TuningDefinition
    from herringbone.tuner.service.tuning import ServiceTuning

_SAGEMAKER = "sagemaker"


@dataclass(frozen=True)
class Candidate:
    """A request whose hyperparameters are searched, and its part of the definition.

    `metrics` are those of the tuner. `name` is the name of one of several estimators; None where there is one.
    """

    request: JobRequest
    definition: TuningDefinition
    metrics: Sequence[MetricDefinition] = ()
    name: str | None = None


def plan_service(candidates: Sequence[Candidate], settings: TuningSettings | None = None) -> JobPlan:
    """Return the plan of a trial of the first candidate, with the request of the tuning job; no network.

    >>> plan_service([Candidate(asked, definition)]).request["HyperParameterTuningJobName"]        # doctest: +SKIP
    'digits'

    Raises the `UsageError` that `create_service` would raise.
    """
    with ExitStack() as checkouts:
        parts = [_part(candidate, _checkout(candidate, checkouts)) for candidate in candidates]
    session = AwsSession.of(candidates[0].request.options.sagemaker_session)
    request = planned_request(parts, settings, loader=session.loader)
    return msgspec.structs.replace(parts[0].plan, request=request)


def create_service(candidates: Sequence[Candidate], settings: TuningSettings | None = None) -> ServiceTuning:
    """Create the tuning job in SageMaker and return without waiting.

    >>> create_service([Candidate(asked, definition)]).wait()         # doctest: +SKIP

    Raises `UsageError` before anything is uploaded, and `AwsError`s.
    """
    stderr, home = Console(sys.stderr), find_home()
    name = candidates[0].definition.name
    # Submitted within the block, because its end deletes the code that is packed.
    with ExitStack() as checkouts:
        parts = [_part(candidate, _checkout(candidate, checkouts)) for candidate in candidates]
        for note in dict.fromkeys(note for part in parts for note in part.plan.notes):
            stderr.say(f"tuning job {name}: {note}")
        home.make()
        return submit_tuning(parts, settings, folder=home.tuning(name))


def settings_of(options: Mapping[str, Any]) -> TuningSettings:
    """Return the settings among the further arguments of a tuner that concern SageMaker alone."""
    return TuningSettings(
        tags=tuple(tag_list(options["tags"])),
        autotune=options["autotune"],
        keep_static=tuple(options["hyperparameters_to_keep_static"] or ()),
    )


def _checkout(candidate: Candidate, checkouts: ExitStack) -> Checkout | None:
    return checkouts.enter_context(checked_out(candidate.request.options.git_config))


def _part(candidate: Candidate, checkout: Checkout | None) -> PlannedPart:
    """Plan the trials of one candidate: its estimator's job under the tuning job's name, without tuned values."""
    request, definition = candidate.request, candidate.definition
    backend = backend_of(request)
    if backend.name != _SAGEMAKER:
        raise UnsupportedError(
            f"several estimators: only SageMaker searches them in one tuning job, and one runs on {backend.name}; give "
            "each an instance_type ml.*, or make a tuner for each"
        )
    if request.arguments.distribution == AUTO:
        raise OptionError(
            'distribution: "auto" measures a script on this machine, and the trials run at AWS; name the strategy'
        )
    # A tuned hyperparameter of the estimator has no fixed value, as with AWS's SDK.
    static = {name: value for name, value in request.arguments.hyperparameters.items() if name not in definition.ranges}
    trial = with_options(
        with_hyperparameters(request, static),
        metric_definitions=with_metrics(candidate.metrics, request.options.metric_definitions),
    )
    plan = plan_request(trial, backend, definition.name, checkout)
    notes = objective_notes(definition.metric, trial.options.metric_definitions)
    plan = msgspec.structs.replace(plan, warnings=(*plan.warnings, *notes))
    return PlannedPart(definition=definition, plan=plan, name=candidate.name)
