"""Plan jobs for `ml.*` without botocore, so that tests of requests do not need the service model."""

from typing import Any

from herringbone import Estimator
from herringbone.api.planning import plan_request
from herringbone.backends.sagemaker.backend import SageMakerBackend
from herringbone.plan.inputs import Inputs
from herringbone.plan.plan import JobPlan

IMAGE = "123456789012.dkr.ecr.us-west-2.amazonaws.com/herringbone-pytorch:2.13"


def planned(inputs: Inputs = None, *, kind: type[Estimator] = Estimator, **changes: Any) -> JobPlan:
    """Return the plan of an estimator with the script `train.py`, which must be in the current folder."""
    arguments: dict[str, Any] = {"entry_point": "train.py", "image_uri": IMAGE, **changes}
    if "instance_groups" not in arguments:
        arguments = {"instance_type": "ml.g5.12xlarge", **arguments}
    return plan_request(kind(**arguments)._asked(inputs), SageMakerBackend(check=lambda *_: None), "digits-1")
