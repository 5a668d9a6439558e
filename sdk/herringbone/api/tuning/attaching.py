"""Come back to tuning jobs: rebuild the estimator of one, and read the results of one for a warm start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from herringbone.api.libraries import ESTIMATORS
from herringbone.plan.request import changed, request_of, with_options
from herringbone.tuner.configs import StrategyConfig, WarmStartConfig
from herringbone.tuner.own import OwnTuning
from herringbone.tuner.service.tuning import ServiceTuning
from herringbone.tuner.tuning import Tuning, find_tuning
from herringbone_contract.errors import OptionError

if TYPE_CHECKING:
    from herringbone.api.estimator import Estimator
    from herringbone.tuner.configs import TunerOptions
    from herringbone.tuner.definition import TuningDefinition
    from herringbone.tuner.trials import Trial


def attached(name: str, session: object, changes: Mapping[str, Any]) -> tuple[Tuning, Estimator]:
    """Return a tuning job and the estimator of its trials; a search whose searcher was killed goes on.

    Raises `JobNotFoundError`, `OptionError` for changes of a search that is over, or `InputError` for secrets that the
    search needs and `changes` lacks.
    """
    tuning = find_tuning(name, session)
    if isinstance(tuning, OwnTuning):
        if changes and tuning.state().done:
            raise OptionError(
                f"{', '.join(changes)}: tuning job {name} is over, so no trial would use a change; leave it out, and "
                "give it to a new tuner with warm_start_config"
            )
        tuning.use(changed(tuning.shared_request(), changes))
        tuning.resume()
        request = msgspec.structs.replace(tuning.shared_request(), queue=False)
    else:
        if changes:
            raise OptionError(f"{', '.join(changes)}: SageMaker has all settings of tuning job {name}; leave them out")
        assert isinstance(tuning, ServiceTuning)
        # The best trial is at the same account and region as its tuning job.
        request = with_options(request_of(tuning.estimator_plan()), sagemaker_session=tuning.boto)
    return tuning, ESTIMATORS[request.estimator].of(request)


def options_of(tuning: Tuning, definition: TuningDefinition) -> TunerOptions:
    """Return the further arguments of the tuner that made a tuning job."""
    options: TunerOptions = {
        "max_runtime_in_seconds": definition.max_runtime_in_seconds,
        "early_stopping_type": definition.early_stopping_type,
        "random_seed": definition.seed,
        "completion_criteria_config": definition.completion,
    }
    if definition.hyperband is not None:
        options["strategy_config"] = StrategyConfig(definition.hyperband)
    if definition.warm_start_type is not None:
        options["warm_start_config"] = WarmStartConfig(definition.warm_start_type, definition.parents)
    if isinstance(tuning, ServiceTuning) and tuning.keep_static is not None:
        options |= {"autotune": True, "hyperparameters_to_keep_static": tuning.keep_static}
    return options


def results_of(name: str) -> tuple[TuningDefinition, Sequence[Trial]]:
    """Return the definition of a tuning job that is over, and its trials. Raises `OptionError` while it runs."""
    tuning = find_tuning(name)
    status = tuning.describe()["HyperParameterTuningJobStatus"]
    if status not in ("Completed", "Stopped", "Failed"):
        raise OptionError(
            f"warm_start_config: parent {name!r} is {status}; wait for its end: herringbone tune show {name}"
        )
    return tuning.definition(), [record.trial() for record in tuning.trials()]
