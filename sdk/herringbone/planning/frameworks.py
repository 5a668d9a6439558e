"""Facts about the estimators' frameworks that several rooms need: rules, images, versions, packages. Pure, but for one.

estimator of a plan -> script_framework (rules of `distribution`), image_framework and image_version (our images)
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from herringbone_contract.strategies import Framework

if TYPE_CHECKING:
    from herringbone.planning.plan import JobPlan

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
# The class of the estimator -> the package that its script imports, and the name to install it by.
_PACKAGES = {
    "HuggingFace": ("transformers", "transformers"),
    "SKLearn": ("sklearn", "scikit-learn"),
    "XGBoost": ("xgboost", "xgboost"),
}


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


def missing_package(plan: JobPlan, installed: Callable[..., str | None]) -> dict[str, str]:
    """Return, as a refusal, the package that the estimator's scripts import and that this Python lacks.

    A job with a requirements.txt is never refused, because its Python is made from that file at the start; nor is a
    shell script, which may start any Python.
    """
    from herringbone.planning.checks import brings_packages

    module, package = _PACKAGES.get(plan.estimator, ("", ""))
    if not module or plan.source is None or PurePath(plan.source.entry_point).suffix != ".py" or brings_packages(plan):
        return {}
    if installed(package, module=module) is not None:
        return {}
    return {
        plan.estimator: f"needs {package}, and ranks run in {sys.executable}, which has none: `pip install {package}`,"
        f" or name {package} in the job's requirements.txt"
    }
