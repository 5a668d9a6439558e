"""Decide whether a search ends before its number of jobs. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from herringbone.tuner.definition import TuningDefinition
from herringbone.tuner.trials import Trial, gain


def completion_reason(definition: TuningDefinition, results: Sequence[Trial]) -> str | None:
    """Return why no more trials begin, as a sentence without subject; None while the search goes on.

    `results` are ended trials, in the order in which the search learns them. Trials that run at that moment run on.
    """
    criteria = definition.completion
    if criteria is None:
        return None
    best, since = -math.inf, 0
    target = criteria.target_objective_metric_value
    goal = None if target is None else target if definition.objective_type == "Maximize" else -target
    patience = criteria.max_number_of_training_jobs_not_improving
    for trial in results:
        value = gain(trial, definition.objective_type)
        best, since = (value, 0) if value > best else (best, since + 1)
        if goal is not None and best >= goal:
            return f"{definition.metric} reached {trial.objective:g}, the target is {target:g}"
        if patience is not None and since >= patience:
            return f"{patience} trials in a row did not improve {definition.metric}"
    return None
