"""Facts about the estimators' frameworks that several rooms need: rules, images and versions. Pure.

request, or the plan of one -> script_framework (rules of `distribution`), image_version (our images)
"""

from __future__ import annotations

from herringbone.plan.options.names import HUGGING_FACE_VERSIONS
from herringbone.plan.request import DISTRIBUTION_RULES, JobRequest
from herringbone_contract.strategies import Framework

# The class of the estimator -> the framework that `herringbone images build` takes.
IMAGES = {
    "PyTorch": "pytorch",
    "TensorFlow": "tensorflow",
    "MXNet": "mxnet",
    "HuggingFace": "huggingface",
    "SKLearn": "sklearn",
    "XGBoost": "xgboost",
}


def script_framework(request: JobRequest) -> Framework | None:
    """Return the framework that a job's script certainly uses; None where it may use any.

    >>> script_framework(JobRequest(estimator="HuggingFace")), script_framework(JobRequest(estimator="SKLearn"))
    ('pytorch', None)
    """
    if request.estimator != "HuggingFace":
        return DISTRIBUTION_RULES.get(request.estimator)
    return "tensorflow" if request.arguments.tensorflow_version else "pytorch"


def image_version(request: JobRequest) -> str | None:
    """Return the version that one of our images must have for a job; None for any."""
    if request.estimator == "HuggingFace":
        return request.arguments.transformers_version
    return request.options.framework_version


def unused_versions(request: JobRequest, used: tuple[str, ...] = ()) -> list[str]:
    """Return the versions of `HuggingFace` that have no effect; `used` are those that chose the image."""
    names = [name for name in HUGGING_FACE_VERSIONS if getattr(request.arguments, name) is not None]
    return [name for name in names if name not in used]
