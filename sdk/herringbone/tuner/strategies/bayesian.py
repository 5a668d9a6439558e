"""Bayesian search by Optuna's tree-structured Parzen estimator."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Sequence
from typing import Any

import optuna
from optuna.storages import InMemoryStorage
from optuna.trial import TrialState

from herringbone.tuner.definition import TuningDefinition
from herringbone.tuner.strategies.draws import Random
from herringbone.tuner.strategies.spaces import from_searched, quiet, searched_space, to_searched
from herringbone.tuner.strategies.warm_start import known_results
from herringbone.tuner.trials import Proposal, Trial

# Random results before the estimator has something to learn from: a third of a short search, at most Optuna's default.
_MOST_RANDOM = 10
_RANDOM_PART = 3


class Bayesian(Random):
    """Bayesian search: each trial where earlier results make a good one likely.

    Each choice has a seed of its own and exactly the results that its trial may use, so it does not depend on what a
    process did before. Configurations of running trials count as bad ones, so that parallel trials spread.
    """

    def __init__(self, definition: TuningDefinition) -> None:
        super().__init__(definition)
        # An infinite result teaches nothing.
        self._learned = sum(not math.isinf(prior.objective) for prior in known_results(definition))
        self._random = min(_MOST_RANDOM, max(definition.job_limit // _RANDOM_PART, 1))
        self._model = _Model(definition)

    def choose(self, proposals: Sequence[Proposal], results: Sequence[Trial]) -> Proposal:
        """Return the next configuration: the best of the parents of a transfer, then random ones, then the model's."""
        number = len(proposals)
        learned = self._learned + sum(_value(trial) is not None for trial in results)
        if number < len(self._first) or learned < self._random:
            return super().choose(proposals, results)
        if not self._model.has_begun_with(proposals, results):
            self._model = _Model(self._definition)
        self._model.learn(proposals, results)
        return Proposal(number, self._model.ask(number))


class _Model:
    """Optuna's study of one search, in memory. A new one costs 150 us for each trial, so it is kept between choices."""

    def __init__(self, definition: TuningDefinition) -> None:
        self._definition = definition
        self._space = searched_space(definition)
        self._storage = InMemoryStorage()
        self._proposals: list[Proposal] = []
        self._results: list[tuple[int, float | None]] = []
        self._keys: list[int] = []  # the storage's key of each proposal
        with quiet():
            direction = optuna.study.StudyDirection[definition.objective_type.upper()]
            self._study = optuna.create_study(direction=direction, storage=self._storage)
        self._study_key = self._storage.get_study_id_from_name(self._study.study_name)
        for prior in known_results(definition):
            # As in `learn`: an infinite objective has no place among the others.
            if math.isinf(prior.objective):
                self._add(prior.values, None, TrialState.PRUNED)
            else:
                self._add(prior.values, prior.objective, TrialState.COMPLETE)

    def has_begun_with(self, proposals: Sequence[Proposal], results: Sequence[Trial]) -> bool:
        """Return whether all that the model has learned is the beginning of these."""
        begun = [(trial.number, _value(trial)) for trial in results[: len(self._results)]]
        return self._results == begun and self._proposals == list(proposals[: len(self._proposals)])

    def learn(self, proposals: Sequence[Proposal], results: Sequence[Trial]) -> None:
        """Add what is new."""
        for proposal in proposals[len(self._proposals) :]:
            self._keys.append(self._add(proposal.values, None, TrialState.RUNNING))
            self._proposals.append(proposal)
        for trial in results[len(self._results) :]:
            value = _value(trial)
            # Pruned before its first report is worse than every result.
            state = TrialState.PRUNED if value is None else TrialState.COMPLETE
            self._storage.set_trial_state_values(self._keys[trial.number], state, None if value is None else [value])
            self._results.append((trial.number, value))

    def ask(self, number: int) -> dict[str, Any]:
        """Return the configuration of the trial of this number."""
        digest = hashlib.sha256(f"{self._definition.seed} {number}".encode()).digest()
        with quiet(), warnings.catch_warnings():
            # Some of the sampler's options are experimental to some of Optuna's releases.
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            self._study.sampler = optuna.samplers.TPESampler(
                seed=int.from_bytes(digest[:4], "big"), multivariate=True, constant_liar=True, n_startup_trials=1
            )
            trial = self._study.ask(self._space)
            # `learn` adds the trial as it is written down, which may differ in the last bit: 1 - (1 - x) is not always
            # x, and a model that is made anew after a kill knows nothing else. Optuna's sampler ignores failed trials.
            self._study.tell(trial, state=TrialState.FAIL)
        return from_searched(self._definition, trial.params)

    def _add(self, values: dict[str, Any], objective: float | None, state: TrialState) -> int:
        params = to_searched(self._definition, values, self._space)
        trial = optuna.trial.create_trial(state=state, value=objective, params=params, distributions=self._space)
        return self._storage.create_new_trial(self._study_key, trial)


def _value(trial: Trial) -> float | None:
    """Return the objective, None where there is none that a model could learn from."""
    if not trial.has_result or trial.objective is None or math.isinf(trial.objective):
        return None
    return trial.objective
