"""Facts about the estimators' frameworks that several rooms need: rules, images and versions. Pure.

estimator of a plan -> script_framework (rules of `distribution`), image_framework and image_version (our images)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from herringbone_contract.strategies import Framework

if TYPE_CHECKING:
    from herringbone.plan.plan import JobPlan

# The class of the estimator -> the framework by whose rules its `distribution` is read.
DISTRIBUTION_RULES: dict[str, Framework] = {
    "PyTorch": "pytorch",
    "TensorFlow": "tensorflow",
    "MXNet": "mxnet",
    "HuggingFace": "huggingface",
}
# The class of the estimator -> the framework that `herringbone images build` takes.
IMAGES = {
    "PyTorch": "pytorch",
    "TensorFlow": "tensorflow",
    "MXNet": "mxnet",
    "HuggingFace": "huggingface",
    "SKLearn": "sklearn",
    "XGBoost": "xgboost",
}
# Arguments of `HuggingFace` alone, in the order of an image's name.
HUGGING_FACE_VERSIONS = ("transformers_version", "pytorch_version", "tensorflow_version")


def script_framework(estimator: str, arguments: Mapping[str, Any]) -> Framework | None:
    """Return the framework that a job's script certainly uses; None where it may use any.

    >>> script_framework("HuggingFace", {"pytorch_version": "2.1"}), script_framework("SKLearn", {})
    ('pytorch', None)
    """
    if estimator != "HuggingFace":
        return DISTRIBUTION_RULES.get(estimator)
    return "tensorflow" if arguments.get("tensorflow_version") else "pytorch"


def image_version(plan: JobPlan) -> str | None:
    """Return the version that one of our images must have for a job; None for any."""
    if plan.estimator == "HuggingFace":
        version: str | None = plan.arguments.get("transformers_version")
        return version
    return plan.options.framework_version


def unused_versions(plan: JobPlan, used: tuple[str, ...] = ()) -> list[str]:
    """Return the versions of `HuggingFace` that have no effect; `used` are those that chose the image."""
    return [name for name in HUGGING_FACE_VERSIONS if name in plan.arguments and name not in used]
