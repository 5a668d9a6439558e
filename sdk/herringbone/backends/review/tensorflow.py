"""Check, as far as a plan can know, that a job will find the TensorFlow that its `distribution` needs."""

from __future__ import annotations

import sys
from collections.abc import Callable

from herringbone.backends.review.checks import brings_packages
from herringbone.plan.plan import JobPlan
from herringbone.system.packages import installed_version, is_older
from herringbone_contract.distribution import Launcher

# The first release with Keras 3, for which Herringbone's library is written.
_LIBRARY_NEEDS = (2, 16)
# Both strategies are TensorFlow's own, so a script under them surely imports it.
_STRATEGIES = (Launcher.PARAMETER_SERVER, Launcher.MULTI_WORKER_MIRRORED)


def installed_tensorflow() -> str | None:
    """Return the version of this Python's TensorFlow: "" where its version is unknown, None without TensorFlow."""
    # tf-nightly provides the module as well.
    return installed_version("tensorflow", "tensorflow-cpu", module="tensorflow")


def missing_tensorflow(plan: JobPlan, installed: Callable[[], str | None]) -> dict[str, str]:
    """Return, as refusals, the TensorFlow that the job needs and its ranks will not find. Imports no TensorFlow.

    A job with a requirements.txt is never refused: its Python is made from that file at the start.
    """
    library = _uses_library(plan)
    strategy = plan.estimator == "TensorFlow" and plan.distribution.launcher in _STRATEGIES
    if not (library or strategy) or brings_packages(plan):
        return {}
    version = installed()
    needed = "TensorFlow 2.16 or newer" if library else "TensorFlow"
    python = f"ranks run in {sys.executable}, which has"
    remedy = "`pip install 'tensorflow>=2.16'`, or name tensorflow in the job's requirements.txt"
    if version is None:
        return {"distribution": f"needs {needed}, and {python} none: {remedy}"}
    if library and is_older(version, _LIBRARY_NEEDS):
        return {"distribution": f"needs {needed}, with Keras 3, and {python} {version}: {remedy}"}
    return {}


def old_tensorflow(plan: JobPlan) -> dict[str, str]:
    """Return, as a refusal, a `framework_version` that none of our images can have together with our library."""
    version = plan.options.framework_version
    if version is None or plan.arguments.get("image_uri") or not _uses_library(plan):
        return {}
    if not is_older(version, _LIBRARY_NEEDS):
        return {}
    return {
        "framework_version": f"{version}: smdistributed needs TensorFlow 2.16 or newer, with Keras 3, in an image that"
        " `herringbone images build tensorflow` made; leave framework_version out, or name an image"
        " with image_uri"
    }


def _uses_library(plan: JobPlan) -> bool:
    distribution = plan.distribution
    library = (
        distribution.launcher is Launcher.DATA_PARALLEL
        or distribution.model_parallel is not None
        or distribution.model_parallel_v2 is not None
    )
    return library and plan.estimator == "TensorFlow"
