"""A copy of a search's trials in Optuna's own format, which `optuna-dashboard FILE` opens.

Nothing reads the copy back: `trials.jsonl` is the record of a search. So a copy that a kill tore is written anew.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import optuna
from optuna.storages.journal import JournalFileBackend, JournalStorage

from herringbone.tuner.definition import TuningDefinition
from herringbone.tuner.strategies.spaces import natural_space, quiet
from herringbone.tuner.trials import Trial, TrialState

_STATES = {
    # Optuna's waiting trials have no values yet.
    TrialState.PROPOSED: optuna.trial.TrialState.RUNNING,
    TrialState.IN_PROGRESS: optuna.trial.TrialState.RUNNING,
    TrialState.COMPLETED: optuna.trial.TrialState.COMPLETE,
    TrialState.STOPPED: optuna.trial.TrialState.COMPLETE,
    TrialState.FAILED: optuna.trial.TrialState.FAIL,
}
# Each point is a write of its own to the disk.
_MOST_POINTS = 20


class OptunaFile:
    """The file of one search; one process at a time writes it.

    >>> OptunaFile(folder / "optuna.journal", definition).write(trials)         # doctest: +SKIP
    """

    def __init__(self, path: Path, definition: TuningDefinition) -> None:
        self._path = path
        self._definition = definition
        self._space = natural_space(definition)
        self._study: int | None = None
        self._storage = self._open()

    def write(self, trials: Sequence[Trial]) -> None:
        """Add what is new in `trials`, which are judged, to the file."""
        if self._study is None:
            self._study = self._find_study()
        written = self._storage.get_all_trials(self._study, deepcopy=False)
        for trial in trials:
            if trial.number >= len(written):
                self._storage.create_new_trial(self._study, template_trial=self._frozen(trial))
            elif trial.state.is_over and not written[trial.number].state.is_finished():
                self._end(self._study, trial)

    def _end(self, study: int, trial: Trial) -> None:
        key = self._storage.get_trial_id_from_study_id_trial_number(study, trial.number)
        for report, value in _points(trial):
            self._storage.set_trial_intermediate_value(key, report, value)
        values = [trial.objective] if trial.has_result and trial.objective is not None else None
        self._storage.set_trial_state_values(key, self._state(trial), values)

    def _open(self) -> JournalStorage:
        # A killed writer leaves its lock, for which Optuna would wait 30 seconds. No other search writes this file.
        self._path.with_name(f"{self._path.name}.lock").unlink(missing_ok=True)
        text = self._path.read_bytes() if self._path.exists() else b""
        if not text.endswith(b"\n"):
            self._path.unlink(missing_ok=True)
        try:
            return JournalStorage(JournalFileBackend(str(self._path)))
        except (ValueError, KeyError):
            # A line in the middle that was not written whole, because the disk was full.
            self._path.unlink()
            return JournalStorage(JournalFileBackend(str(self._path)))

    def _find_study(self) -> int:
        name = self._definition.name
        try:
            return self._storage.get_study_id_from_name(name)
        except KeyError:
            direction = optuna.study.StudyDirection[self._definition.objective_type.upper()]
            with quiet():
                return self._storage.create_new_study([direction], name)

    def _frozen(self, trial: Trial) -> optuna.trial.FrozenTrial:
        state = self._state(trial)
        return optuna.trial.create_trial(
            state=state,
            value=trial.objective if trial.has_result else None,
            params=trial.proposal.values,
            distributions=self._space,
            user_attrs={"job": trial.job_name, "resource": trial.proposal.resource, "resumes": trial.proposal.resumes},
            intermediate_values=dict(_points(trial)) if trial.state.is_over else {},
        )

    def _state(self, trial: Trial) -> optuna.trial.TrialState:
        state = _STATES[trial.state]
        # Optuna has no complete trial without a value.
        is_empty = state == optuna.trial.TrialState.COMPLETE and not trial.has_result
        return optuna.trial.TrialState.FAIL if is_empty else state


def _points(trial: Trial) -> list[tuple[int, float]]:
    """Return some reports of a trial, the last one included, each with its number from 1."""
    step = max(math.ceil(len(trial.curve) / _MOST_POINTS), 1)
    reports = sorted({*range(step, len(trial.curve) + 1, step), len(trial.curve)} - {0})
    return [(report, trial.curve[report - 1]) for report in reports]
