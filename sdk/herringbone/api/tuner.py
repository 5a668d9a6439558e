"""`HyperparameterTuner`: SageMaker's class for the search of hyperparameters, on every backend."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import msgspec

from herringbone.plan.options.typed import MetricDefinition, parse_options
from herringbone.plan.request import base_job_name, request_of
from herringbone.show.cells import shown_number
from herringbone.show.console import Console
from herringbone.system.interrupt import OnInterrupt, check_choice, stops
from herringbone.tuner.analytics import TunerAnalytics
from herringbone.tuner.configs import WarmStartConfig, WarmStartTypes, asks, tag_list, with_defaults
from herringbone.tuner.definition import TuningDefinition, check_tuning_name, define
from herringbone.tuner.fields import parameter_ranges
from herringbone.tuner.look import best_of
from herringbone.tuner.parameters import ParameterRange
from herringbone.tuner.strategies.autotune import autotuned
from herringbone.tuner.strategies.warm_start import prior_trials
from herringbone.tuner.tuning import Tuning
from herringbone_contract.errors import InputError, OptionError, UnsupportedError

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from herringbone.api.estimator import Estimator
    from herringbone.api.tuning.service import Candidate
    from herringbone.plan.inputs import Inputs
    from herringbone.plan.plan import JobPlan
    from herringbone.plan.request import JobRequest
    from herringbone.tuner.configs import TunerOptions
    from herringbone.tuner.store import TrialRecord

_SAGEMAKER = "sagemaker"


class HyperparameterTuner:
    """Search the hyperparameters with which an estimator's job reaches the best value of a metric.

    >>> tuner = HyperparameterTuner(estimator, "accuracy", {"lr": ContinuousParameter(1e-4, 1e-1)},
    ...                             strategy="Random", max_jobs=20, max_parallel_jobs=2)       # doctest: +SKIP
    >>> tuner.fit({"training": "data"})                        # doctest: +SKIP
    >>> tuner.best_estimator().model_data                      # doctest: +SKIP
    'file:///home/me/.herringbone/jobs/train-261123-150807-012/output/model.tar.gz'

    Arguments and methods have the names and the defaults of `sagemaker.tuner.HyperparameterTuner`; `TunerOptions` in
    `herringbone.tuner.configs` lists the `options`. On `ml.*` SageMaker searches. On all other instance types a process
    of this machine does, which outlives your Python. Raises `OptionError`.

    Args:
        estimator: Its settings are those of all trials, apart from the tuned hyperparameters.
        objective_metric_name: A metric that the script logs, or that `metric_definitions` find in its log.
        hyperparameter_ranges: The range of each tuned hyperparameter.
        metric_definitions: The metrics in the log, besides those of the estimator.
        strategy: Bayesian, Random, Grid or Hyperband.
        objective_type: Maximize or Minimize.
        max_jobs: The number of configurations; 1 unless given, with Grid all combinations.
        max_parallel_jobs: The number of trials that run at the same time.
    """

    def __init__(
        self,
        estimator: Estimator,
        objective_metric_name: str,
        hyperparameter_ranges: Mapping[str, ParameterRange] | None = None,
        metric_definitions: Sequence[Mapping[str, str]] | None = None,
        strategy: str = "Bayesian",
        objective_type: str = "Maximize",
        max_jobs: int | None = None,
        max_parallel_jobs: int = 1,
        **options: Unpack[TunerOptions],
    ) -> None:
        self.estimator = estimator
        self.objective_metric_name = objective_metric_name
        self.metric_definitions = metric_definitions
        self.strategy = strategy
        self.objective_type = objective_type
        self.max_jobs = max_jobs
        self.max_parallel_jobs = max_parallel_jobs
        self.options = with_defaults(options)
        self._ranges = dict(hyperparameter_ranges or {})
        self._metrics: tuple[MetricDefinition, ...] = parse_options(
            {"metric_definitions": metric_definitions}
        ).metric_definitions
        self._tuning: Tuning | None = None
        # Of several estimators, one tuner for each.
        self._members: Mapping[str, HyperparameterTuner] = {}
        # Wrong settings are refused here, where the traceback shows them.
        self.definition("tuning")

    def __repr__(self) -> str:
        job = "none yet" if self._tuning is None else self._tuning.name
        return f"HyperparameterTuner({self.estimator!r}, {self.objective_metric_name!r}, {job=!s})"

    @classmethod
    def create(
        cls,
        estimator_dict: Mapping[str, Estimator],
        objective_metric_name_dict: Mapping[str, str],
        hyperparameter_ranges_dict: Mapping[str, Mapping[str, ParameterRange]],
        metric_definitions_dict: Mapping[str, Sequence[Mapping[str, str]]] | None = None,
        **settings: Any,
    ) -> Self:
        """Return a tuner of several estimators, which only SageMaker searches; `inputs` of `fit` have their names."""
        from herringbone.api.tuning.several import members_of

        dicts = objective_metric_name_dict, hyperparameter_ranges_dict, metric_definitions_dict
        members = members_of(cls, estimator_dict, *dicts, settings)
        tuner = copy(next(iter(members.values())))
        tuner._members = members
        return tuner

    def plan(self, inputs: Inputs = None, job_name: str | None = None) -> JobPlan:
        """Return the plan of a trial in the middle of all ranges, without starting anything.

        Raises the `UsageError` that `fit` would raise.
        """
        definition = self._complete_definition(self._name(job_name))
        if self._backend_name == _SAGEMAKER:
            from herringbone.api.tuning.service import plan_service, settings_of

            return plan_service(self._candidates(inputs, definition), settings_of(self.options))
        from herringbone.api.tuning.creation import plan_trial

        return plan_trial(self._asked(inputs), definition, self._metrics)

    def fit(
        self,
        inputs: Inputs = None,
        job_name: str | None = None,
        include_cls_metadata: bool = False,
        estimator_kwargs: Mapping[str, Any] | None = None,
        wait: bool = True,
        *,
        on_interrupt: OnInterrupt | None = None,
    ) -> Tuning:
        """Start the search and return it. With `wait`, show the end of each trial until the search is over.

        >>> tuner.fit("file://data", wait=False).name            # doctest: +SKIP
        'train-261123-150807'

        The code is copied now, so all trials run the same. `on_interrupt` decides what Ctrl-C does, as in
        `Estimator.fit`: "stop" stops the search and its trials, "detach" leaves them, "ask" asks on a terminal. Raises
        `UsageError` before anything starts, and with `wait` `TuningFailedError` for a search without a result.
        """
        check_choice(on_interrupt)
        if asks(include_cls_metadata) or asks(estimator_kwargs):
            raise UnsupportedError(
                "include_cls_metadata, estimator_kwargs: these are for several estimators and AWS's own attach; leave "
                "them out"
            )
        definition = self._complete_definition(self._name(job_name))
        if self._backend_name == _SAGEMAKER:
            from herringbone.api.tuning.service import create_service, settings_of

            self._tuning = create_service(self._candidates(inputs, definition), settings_of(self.options))
        else:
            from herringbone.api.tuning.creation import create_tuning

            asked, tags = self._asked(inputs), tag_list(self.options["tags"])
            self._tuning = create_tuning(asked, definition, metrics=self._metrics, tags=tags)
        Console(sys.stderr).say(
            f"tuning job {definition.name}: searching on {self._backend_name} "
            f"(look at it elsewhere: herringbone tune show {definition.name})"
        )
        if wait:
            self.wait(on_interrupt=on_interrupt)
        return self._tuning

    def wait(self, *, on_interrupt: OnInterrupt | None = None, say: Callable[[str], None] | None = None) -> None:
        """Wait until the search is over, as `fit` does; a searcher that was killed is started again.

        `say` gets the lines that standard error gets otherwise: one for each trial that ends, and the last one.
        """
        tuning, say = self._found(), Console(sys.stderr).say if say is None else say
        try:
            tuning.wait(say)
        except KeyboardInterrupt:
            self._interrupted(tuning, on_interrupt or self.estimator._backend.on_interrupt, say)
            raise
        self._say_end(tuning, say)

    @classmethod
    def attach(
        cls,
        tuning_job_name: str,
        sagemaker_session: object = None,
        job_details: Mapping[str, Any] | None = None,
        estimator_cls: object = None,
        **changes: Any,
    ) -> Self:
        """Return the tuner of a tuning job, without waiting. A search whose process was killed goes on.

        >>> HyperparameterTuner.attach("train-261123-150807").wait()          # doctest: +SKIP

        Secrets are stored masked. A search that goes on needs them again, in `changes`, which are arguments of the
        estimator: `environment={"TOKEN": ...}`. Raises `JobNotFoundError`, or `InputError` that names the secrets.
        """
        if job_details is not None or estimator_cls is not None:
            raise UnsupportedError("job_details, estimator_cls: the tuning job knows both; leave them out")
        from herringbone.api.tuning.attaching import attached

        tuning, estimator = attached(tuning_job_name, sagemaker_session, changes)
        tuner = cls.__new__(cls)
        tuner._take(tuning, estimator)
        return tuner

    @property
    def latest_tuning_job(self) -> Tuning | None:
        """The tuning job of the last `fit`, or of `attach`; None before the first."""
        return self._tuning

    def describe(self) -> dict[str, Any]:
        """Return the tuning job under the key names of DescribeHyperParameterTuningJob, as plain JSON values."""
        return self._found().describe()

    def stop_tuning_job(self) -> None:
        """Ask the search to stop, and return; running trials are stopped, too."""
        self._found().stop()

    def trials(self) -> list[TrialRecord]:
        """Return the trials so far in the order of their numbers, each with its values and its objective."""
        return self._found().trials()

    def best_training_job(self) -> str:
        """Return the name of the job with the best objective. Raises `InputError` while there is none."""
        tuning = self._found()
        chosen = best_of(tuning.definition(), tuning.trials())
        if chosen is None:
            raise InputError(f"tuning job {tuning.name}: no training job has a value of the objective metric yet")
        return chosen.job

    def best_estimator(self, best_training_job: Mapping[str, Any] | None = None) -> Estimator:
        """Return the estimator of the best job, or of the one that `best_training_job` describes."""
        name = self.best_training_job() if best_training_job is None else str(best_training_job["TrainingJobName"])
        kind, session = type(self.estimator), self.estimator.options.sagemaker_session
        if self._members:
            from herringbone.api.job import attach
            from herringbone.api.libraries import ESTIMATORS

            kind = ESTIMATORS[request_of(attach(name, session).plan).estimator]
        return kind.attach(name, session)

    def analytics(self) -> TunerAnalytics:
        """Return the results as tables: `tuner.analytics().dataframe()`."""
        return TunerAnalytics(self._found())

    def hyperparameter_ranges(self) -> dict[str, list[dict[str, Any]]]:
        """Return the ranges as CreateHyperParameterTuningJob takes them."""
        return parameter_ranges(self.definition("tuning").ranges)

    def identical_dataset_and_algorithm_tuner(self, additional_parents: Sequence[str] | None = None) -> Self:
        """Return a tuner with the same settings whose search goes on from this one's results."""
        return self._warm_started(WarmStartTypes.IDENTICAL_DATA_AND_ALGORITHM, additional_parents, None)

    def transfer_learning_tuner(
        self, additional_parents: Sequence[str] | None = None, estimator: Estimator | None = None
    ) -> Self:
        """Return a tuner whose search begins where this one's was best; data or code may be others."""
        return self._warm_started(WarmStartTypes.TRANSFER_LEARNING, additional_parents, estimator)

    def deploy(self, *_: Any, **__: Any) -> None:
        """Refuse: Herringbone hosts no models."""
        raise UnsupportedError("deploy: Herringbone hosts no models; best_estimator().model_data is the best one")

    @property
    def _backend_name(self) -> str:
        return self.estimator._backend.name

    def _name(self, job_name: str | None) -> str:
        if job_name is not None:
            return check_tuning_name(job_name)
        base = self.options["base_tuning_job_name"] or base_job_name(self.estimator._request)
        from herringbone.api.tuning.creation import free_name

        return free_name(base, datetime.now(timezone.utc))

    def definition(self, name: str) -> TuningDefinition:
        """Return what `fit` would search under this name; a seed that is not given is drawn only then."""
        static, ranges = self.estimator._request.arguments.hyperparameters, self._ranges
        if self.options["autotune"] and self._backend_name != _SAGEMAKER:
            free = {key: value for key, value in static.items() if key not in ranges}
            made, _ = autotuned(free, self.options["hyperparameters_to_keep_static"])
            ranges = {**made, **ranges}
        strategy, warm = self.options["strategy_config"], self.options["warm_start_config"]
        return define(
            {
                "name": name,
                "metric": self.objective_metric_name,
                "ranges": ranges,
                # A tuned hyperparameter of the estimator has no fixed value, as with AWS's SDK.
                "static": {key: value for key, value in static.items() if key not in ranges},
                "objective_type": self.objective_type,
                "strategy": self.strategy,
                "max_jobs": self.max_jobs,
                "max_parallel_jobs": self.max_parallel_jobs,
                "max_runtime_in_seconds": self.options["max_runtime_in_seconds"],
                "early_stopping_type": self.options["early_stopping_type"],
                "seed": self.options["random_seed"],
                "hyperband": None if strategy is None else strategy.hyperband_strategy_config,
                "completion": self.options["completion_criteria_config"],
                "warm_start_type": None if warm is None else warm.warm_start_type,
                "parents": () if warm is None else tuple(sorted(warm.parents)),
            },
            without_ranges=self.options["autotune"] and self._backend_name == _SAGEMAKER,
        )

    def _complete_definition(self, name: str) -> TuningDefinition:
        """Return the definition with what is known only now: a seed, and the results of the parents."""
        definition = self.definition(name)
        if self._backend_name == _SAGEMAKER:
            return definition
        if definition.seed is None:
            definition = msgspec.structs.replace(definition, seed=secrets.randbelow(2**31))
        if not definition.parents:
            return definition
        from herringbone.api.tuning.attaching import results_of

        results = {parent: results_of(parent) for parent in definition.parents}
        return msgspec.structs.replace(definition, priors=prior_trials(definition, results))

    def _candidates(self, inputs: Inputs, definition: TuningDefinition) -> list[Candidate]:
        if self._members:
            from herringbone.api.tuning.several import candidates_of

            return candidates_of(self._members, inputs, definition.name)
        from herringbone.api.tuning.service import Candidate

        return [Candidate(self.estimator._asked(inputs), definition, self._metrics)]

    def _asked(self, inputs: Inputs) -> JobRequest:
        if self.estimator._copied_checkpoints:
            text = (
                "estimator: like(resume=True) begins from one job's checkpoints, and each trial of a search begins anew"
            )
            raise OptionError(f"{text}; make the estimator with like(NAME)")
        return self.estimator._asked(inputs)

    def _warm_started(
        self, kind: WarmStartTypes, additional: Sequence[str] | None, estimator: Estimator | None
    ) -> Self:
        tuner = copy(self)
        tuner.estimator = self.estimator if estimator is None else estimator
        parents = {self._found().name, *(additional or ())}
        tuner.options = {**self.options, "warm_start_config": WarmStartConfig(kind, parents)}
        tuner._tuning = None
        return tuner

    def _take(self, tuning: Tuning, estimator: Estimator) -> None:
        """Take over the settings of a tuning job that exists."""
        from herringbone.api.tuning.attaching import options_of

        definition = tuning.definition()
        HyperparameterTuner.__init__(
            self,
            estimator,
            definition.metric,
            definition.ranges,
            None,
            definition.strategy,
            definition.objective_type,
            definition.max_jobs,
            definition.max_parallel_jobs,
            **options_of(tuning, definition),
        )
        self._tuning = tuning

    def _found(self) -> Tuning:
        if self._tuning is None:
            raise OptionError("this tuner has no tuning job yet; call fit() first, or attach(NAME)")
        return self._tuning

    def _interrupted(self, tuning: Tuning, choice: OnInterrupt, say: Callable[[str], None]) -> None:
        if not stops(choice, tuning.name):
            name, verb = tuning.name, "herringbone tune"
            say(f"tuning job {name} goes on; look at it: {verb} show {name}; stop it: {verb} stop {name}")
            return
        try:
            say(f"stopping tuning job {tuning.name}; Ctrl-C again kills its training jobs")
            tuning.stop()
            tuning.wait(say)
        except KeyboardInterrupt:
            # SageMaker's trials cannot be killed: the service ends them when their grace is over.
            if (kill := getattr(tuning, "kill", None)) is not None:
                kill()

    def _say_end(self, tuning: Tuning, say: Callable[[str], None]) -> None:
        chosen = best_of(tuning.definition(), tuning.trials())
        text = f"tuning job {tuning.name}: {tuning.describe()['HyperParameterTuningJobStatus']}"
        if chosen is not None:
            text += f", best: job {chosen.job}, {self.objective_metric_name} {shown_number(chosen.objective)} ("
            text += f"{', '.join(f'{name}={value}' for name, value in chosen.values.items())})"
        say(text)
