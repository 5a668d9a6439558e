"""Plans for `ml.*` without botocore: what a request says is tested apart from what the service's model allows."""

from typing import Any

from herringbone import Estimator
from herringbone.backends.sagemaker.backend import SageMakerBackend
from herringbone.estimators.inputs import Inputs
from herringbone.planning.plan import JobPlan

IMAGE = "123456789012.dkr.ecr.us-west-2.amazonaws.com/herringbone-pytorch:2.13"


def planned(inputs: Inputs = None, *, kind: type[Estimator] = Estimator, **given: Any) -> JobPlan:
    """Return the plan of an estimator of the script `train.py`, which the current folder must hold."""
    arguments: dict[str, Any] = {"entry_point": "train.py", "image_uri": IMAGE, **given}
    if "instance_groups" not in arguments:
        arguments = {"instance_type": "ml.g5.12xlarge", **arguments}
    return kind(**arguments)._plan(SageMakerBackend(check=lambda *_: None), inputs, "digits-1")
