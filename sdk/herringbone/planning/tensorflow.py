"""Whether a job finds the TensorFlow that its `distribution` needs, as far as a plan can know."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import sys
from collections.abc import Callable

from herringbone.planning.checks import brings_packages
from herringbone.planning.plan import JobPlan

_PACKAGES = ("tensorflow", "tensorflow-cpu")
# The first that comes with Keras 3; Herringbone's library is written for it.
_LIBRARY_NEEDS = (2, 16)
_STRATEGIES = ("parameter_server", "multi_worker_mirrored")


def installed_tensorflow() -> str | None:
    """Return this Python's TensorFlow: its version, "" where it has one that does not say, None where it has none."""
    for package in _PACKAGES:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None if importlib.util.find_spec("tensorflow") is None else ""


def missing_tensorflow(plan: JobPlan, installed: Callable[[], str | None]) -> dict[str, str]:
    """Return, as refusals, what the job needs of TensorFlow and ranks will not find; nothing is imported.

    A job with a requirements.txt runs in a Python of its own, of which nothing is known yet.
    """
    library = _uses_library(plan)
    strategy = plan.estimator == "TensorFlow" and plan.launcher in _STRATEGIES
    if not (library or strategy) or brings_packages(plan):
        return {}
    found = installed()
    needed = "TensorFlow 2.16 or newer" if library else "TensorFlow"
    where = f"ranks run in {sys.executable}, which has"
    way = "`pip install 'herringbone[tensorflow]'`, or name tensorflow in the job's requirements.txt"
    if found is None:
        return {"distribution": f"needs {needed}, and {where} none: {way}"}
    if library and _release(found) < _LIBRARY_NEEDS:
        return {"distribution": f"needs {needed}, with Keras 3, and {where} {found}: {way}"}
    return {}


def old_tensorflow(plan: JobPlan) -> dict[str, str]:
    """Return, as a refusal, a `framework_version` that no image of ours can have beside our library."""
    version = plan.options.framework_version
    if version is None or plan.arguments.get("image_uri") or not _uses_library(plan):
        return {}
    if _release(version) >= _LIBRARY_NEEDS:
        return {}
    return {
        "framework_version": f"{version}: smdistributed needs TensorFlow 2.16 or newer, with Keras 3, in an image that"
        " `herringbone images build tensorflow` made; leave framework_version out, or name an image"
        " with image_uri"
    }


def _uses_library(plan: JobPlan) -> bool:
    library = plan.launcher == "data_parallel" or "mp_parameters" in plan.hyperparameters
    return library and plan.estimator == "TensorFlow"


def _release(version: str) -> tuple[int, int]:
    """Return the first two numbers of a version; one that has no two, such as "2", may be new enough."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return _LIBRARY_NEEDS if numbers is None else (int(numbers[1]), int(numbers[2]))
