"""The estimators of a search's trials."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from herringbone.api.estimator import Estimator
from herringbone.api.frameworks import MXNet, PyTorch, TensorFlow
from herringbone.records.again import inputs_of

if TYPE_CHECKING:
    from herringbone.plan.plan import JobPlan

_CLASSES: dict[str, type[Estimator]] = {kind.__name__: kind for kind in (Estimator, PyTorch, TensorFlow, MXNet)}


def estimator_class(plan: JobPlan) -> type[Estimator]:
    """Return the class that made a plan; for a class that the user wrote, `Estimator`."""
    return _CLASSES.get(plan.estimator, Estimator)


def start_trial(plan: JobPlan, settings: Mapping[str, Any], job: str) -> None:
    """Submit the job of a trial: `plan` is what all trials share, `settings` are the arguments of its estimator."""
    estimator = estimator_class(plan)(**settings)
    estimator.fit(inputs_of(plan), wait=False, logs=False, job_name=job, queue=True)
