"""Check that a job's libraries run every setting of its `distribution`."""

from __future__ import annotations

from herringbone.planning.plan import JobPlan
from herringbone_contract.model_parallel import value_or
from herringbone_contract.served import PARAMETERS, Library, unserved
from herringbone_contract.strategies import Framework

# The class of the estimator -> the framework that its script certainly uses.
_FRAMEWORKS: dict[str, Framework] = {"PyTorch": "pytorch", "TensorFlow": "tensorflow", "MXNet": "mxnet"}


def unserved_settings(plan: JobPlan, library: Library) -> dict[str, str]:
    """Return, as refusals, the settings of the plan's `distribution` that the library would not run. Pure.

    refuse("local_process", unserved_settings(plan, Library.HERRINGBONE))
    """
    framework = _FRAMEWORKS.get(plan.estimator)
    refusals = unserved(plan.distribution, library, framework)
    if library is Library.HERRINGBONE and framework == "pytorch":
        refusals |= _replicas_without_average(plan)
    return refusals


def _replicas_without_average(plan: JobPlan) -> dict[str, str]:
    parameters = plan.distribution.model_parallel
    if parameters is None or value_or(parameters.ddp, False):
        return {}
    ranks = sum(host.ranks or 0 for host in plan.hosts)
    partitions = parameters.pipeline_degree
    if ranks <= partitions:
        return {}
    return {
        f"{PARAMETERS}.ddp": f"{ranks} ranks with {partitions} partitions make {ranks // partitions} replicas of the"
        f" pipeline, and nothing would average their gradients: set 'ddp': True, or start {partitions} ranks"
    }
