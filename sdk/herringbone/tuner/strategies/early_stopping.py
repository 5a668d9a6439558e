"""Stop trials early by SageMaker's median rule, and judge trials by it. Pure.

The rule, as AWS documents it: after each report of the objective metric, take the running averages of all previous
trials up to the same report; a trial whose value is worse than their median is stopped.

A stop takes some time: the job may report more meanwhile, or end well. Results do not depend on that: `judged` cuts
each trial off where the rule stopped it, and nothing else looks at the rest of its curve.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator, Sequence

import msgspec

from herringbone.tuner.definition import TuningDefinition
from herringbone.tuner.trials import Trial, TrialState

# A median of fewer says little. AWS documents no number.
MIN_PREVIOUS = 3


def judged(definition: TuningDefinition, trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials with their objectives, each cut off where the median rule stopped it.

    An objective is the last value of the curve, as with SageMaker. A failed trial has none, nor has one that runs.
    """
    return [trial for trial, _ in _judge(definition, trials)]


def stops(definition: TuningDefinition, trials: Sequence[Trial]) -> list[int]:
    """Return the numbers of the running trials that the rule stops now.

    `trials` are as the jobs are, not `judged`.
    """
    return [
        trial.number
        for trial, end in _judge(definition, trials)
        if end is not None and trial.state is TrialState.IN_PROGRESS
    ]


def _judge(definition: TuningDefinition, trials: Sequence[Trial]) -> Iterator[tuple[Trial, int | None]]:
    """Yield each trial as it counts, and the number of reports after which the rule stops it."""
    is_on = definition.early_stopping_type == "Auto"
    history = _History(max((len(trial.curve) for trial in trials), default=0) if is_on else 0)
    results: list[Trial] = []
    for trial in trials:
        # The previous trials are those whose results were there when this one was chosen (`strategies.order`).
        if is_on and trial.number >= definition.max_parallel_jobs:
            history.add(results[trial.number - definition.max_parallel_jobs])
        end = None
        # A crash is not the rule's doing, whatever was reported before.
        if is_on and trial.state is not TrialState.FAILED:
            end = history.first_below(trial.curve, definition.objective_type)
        if trial.state.is_over and end is not None and end < len(trial.curve):
            trial = msgspec.structs.replace(trial, state=TrialState.STOPPED, curve=trial.curve[:end])
        counts = trial.state in (TrialState.COMPLETED, TrialState.STOPPED) and trial.curve
        trial = msgspec.structs.replace(trial, objective=trial.curve[-1] if counts else None)
        results.append(trial)
        yield trial, end


class _History:
    """The running averages of earlier trials after each report, sorted, so that a median is a look-up."""

    def __init__(self, reports: int) -> None:
        self._averages: list[list[float]] = [[] for _ in range(reports)]
        self._trials = 0

    def add(self, trial: Trial) -> None:
        """Add a trial that ended; one without a result, or with a report that is no number, counts for nothing."""
        if trial.objective is None or any(map(math.isnan, trial.curve)):
            return
        self._trials += 1
        averages = [total / reports for reports, total in enumerate(itertools.accumulate(trial.curve), 1)]
        for index, column in enumerate(self._averages):
            # A trial that ended sooner counts with all that it reported.
            bisect.insort(column, averages[min(index, len(averages) - 1)])

    def first_below(self, curve: Sequence[float], objective_type: str) -> int | None:
        """Return the number of the first report that is worse than the median; None if there is none."""
        if self._trials < MIN_PREVIOUS:
            return None
        sign = 1 if objective_type == "Maximize" else -1
        for reports, value in enumerate(curve, 1):
            column = self._averages[reports - 1]
            median = (column[(self._trials - 1) // 2] + column[self._trials // 2]) / 2
            # NaN is worse than every number.
            if not sign * value >= sign * median:
                return reports
        return None
