"""Check, as far as a plan can know, that a script finds the library that its estimator is named after."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import PurePath

from herringbone.backends.review.checks import brings_packages
from herringbone.plan.plan import JobPlan

# The class of the estimator -> the package that its script imports, and the name to install it by.
_PACKAGES = {
    "HuggingFace": ("transformers", "transformers"),
    "SKLearn": ("sklearn", "scikit-learn"),
    "XGBoost": ("xgboost", "xgboost"),
}


def missing_package(plan: JobPlan, installed: Callable[..., str | None]) -> dict[str, str]:
    """Return, as a refusal, the package that the estimator's scripts import and that this Python lacks.

    A job with a requirements.txt is never refused, because its Python is made from that file at the start; nor is a
    shell script, which may start any Python.
    """
    module, package = _PACKAGES.get(plan.estimator, ("", ""))
    if not module or plan.source is None or PurePath(plan.source.entry_point).suffix != ".py" or brings_packages(plan):
        return {}
    if installed(package, module=module) is not None:
        return {}
    return {
        plan.estimator: f"needs {package}, and ranks run in {sys.executable}, which has none: `pip install {package}`,"
        f" or name {package} in the job's requirements.txt"
    }
