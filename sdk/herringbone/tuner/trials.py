"""Proposals and trials, in the order of their numbers: the only thing that a strategy's decisions depend on. Pure."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable
from typing import Any

import msgspec


class TrialState(enum.Enum):
    """The state of a trial's job, in the words of SageMaker's TrainingJobStatus; `PROPOSED` has no job yet."""

    PROPOSED = "Proposed"
    IN_PROGRESS = "InProgress"
    COMPLETED = "Completed"
    FAILED = "Failed"
    STOPPED = "Stopped"

    @property
    def is_over(self) -> bool:
        """True once the job has ended."""
        return self in (TrialState.COMPLETED, TrialState.FAILED, TrialState.STOPPED)


class Proposal(msgspec.Struct, frozen=True, omit_defaults=True):
    """One training job that a strategy asks for.

    `number` counts from 0 without gaps; proposals are submitted in this order. `values` are the tuned hyperparameters.
    `resource` is the number of epochs until which the job trains, given as the hyperparameter
    `definition.resource_name`; None leaves the job's own length. `resumes` is the number of the trial whose checkpoint
    the job continues; its values are the same.
    """

    number: int
    values: dict[str, Any]
    resource: int | None = None
    resumes: int | None = None


class Trial(msgspec.Struct, frozen=True, omit_defaults=True):
    """One proposal and its job.

    `curve` are the values of the objective metric, in the order in which the job reported them. `objective` is the last
    of them, or for a trial that the strategy stops early the value at which it was stopped
    (`strategies.early_stopping.judged`). It is None while the trial runs, and for a failed trial.
    """

    proposal: Proposal
    job_name: str = ""
    state: TrialState = TrialState.PROPOSED
    objective: float | None = None
    curve: tuple[float, ...] = ()

    @property
    def number(self) -> int:
        """The number of the proposal."""
        return self.proposal.number

    @property
    def has_result(self) -> bool:
        """True if the trial ended with a number to compare; a failed one has none, nor has NaN."""
        return self.state.is_over and self.objective is not None and not math.isnan(self.objective)


def gain(trial: Trial, objective_type: str) -> float:
    """Return the objective so that more is better; minus infinity for a trial without a result.

    >>> gain(Trial(Proposal(0, {}), state=TrialState.COMPLETED, objective=0.25), "Minimize")
    -0.25
    """
    if not trial.has_result or trial.objective is None:
        return -math.inf
    return trial.objective if objective_type == "Maximize" else -trial.objective


def best(trials: Iterable[Trial], objective_type: str) -> Trial | None:
    """Return the trial with the best objective, of equal ones the first; None if none has a result."""
    results = [trial for trial in trials if trial.has_result]
    return min(results, key=lambda trial: (-gain(trial, objective_type), trial.number), default=None)
