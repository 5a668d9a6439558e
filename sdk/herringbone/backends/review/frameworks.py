"""Check, as far as a plan can know, that a job's script finds the framework and the library that it needs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import PurePath

from herringbone.backends.review.checks import brings_packages
from herringbone.plan.plan import JobPlan
from herringbone.system.packages import installed_version, is_older, release_of
from herringbone_contract.distribution import Launcher
from herringbone_contract.served import RECENT_TORCH, needs_recent_torch

# The class of the estimator -> the package that its script imports, and the name to install it by.
_LIBRARIES = {
    "HuggingFace": ("transformers", "transformers"),
    "SKLearn": ("sklearn", "scikit-learn"),
    "XGBoost": ("xgboost", "xgboost"),
}
# The first numpy without `numpy.bool`, which MXNet's last release reads when it is imported.
_NUMPY_TOO_NEW = (1, 24)
_MXNET_REMEDY = (
    "`pip install mxnet==1.9.1 'numpy<1.24'` on Python 3.10 or 3.11, or name mxnet==1.9.1 and numpy<1.24 in the job's"
    " requirements.txt"
)
# The versions of this Python's MXNet and numpy; None for a package that is not installed.
Installed = tuple[str | None, str | None]
# The first release with Keras 3, for which Herringbone's library is written.
_TENSORFLOW_NEEDED = (2, 16)
# Both strategies are TensorFlow's own, so a script under them surely imports it.
_STRATEGIES = (Launcher.PARAMETER_SERVER, Launcher.MULTI_WORKER_MIRRORED)
_TORCH_NEEDED = ".".join(str(number) for number in RECENT_TORCH)


def missing_package(plan: JobPlan, installed: Callable[..., str | None]) -> dict[str, str]:
    """Return, as a refusal, the package that the estimator's scripts import and that this Python lacks.

    A job with a requirements.txt is never refused, because its Python is made from that file at the start; nor is a
    shell script, which may start any Python.
    """
    module, package = _LIBRARIES.get(plan.estimator, ("", ""))
    if not module or plan.source is None or PurePath(plan.source.entry_point).suffix != ".py" or brings_packages(plan):
        return {}
    if installed(package, module=module) is not None:
        return {}
    return {
        plan.estimator: f"needs {package}, and ranks run in {sys.executable}, which has none: `pip install {package}`,"
        f" or name {package} in the job's requirements.txt"
    }


def installed_mxnet() -> Installed:
    """Return the versions of this Python's MXNet and numpy; "" for an MXNet whose version is unknown."""
    # A package for GPUs has another name.
    return installed_version("mxnet", module="mxnet"), installed_version("numpy")


def missing_mxnet(plan: JobPlan, installed: Callable[[], Installed]) -> dict[str, str]:
    """Return, as refusals, the packages that an MXNet script needs and its ranks will not find. Imports none of them.

    A job with a requirements.txt is never refused: its Python is made from that file at the start.
    """
    assert plan.source is not None
    # A shell script may start any Python, so its packages are unknown.
    is_python = PurePath(plan.source.entry_point).suffix == ".py"
    if plan.estimator != "MXNet" or not is_python or brings_packages(plan):
        return {}
    mxnet, numpy = installed()
    python = f"ranks run in {sys.executable}, which has"
    if mxnet is None:
        return {"MXNet": f"not there: {python} none: {_MXNET_REMEDY}"}
    # MXNet without a numpy does not import either.
    if numpy is None or (release_of(numpy) or (0, 0)) >= _NUMPY_TOO_NEW:
        return {"MXNet": f"needs a numpy older than 1.24, and {python} {numpy or 'none'}: {_MXNET_REMEDY}"}
    return {}


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
    if library and is_older(version, _TENSORFLOW_NEEDED):
        return {"distribution": f"needs {needed}, with Keras 3, and {python} {version}: {remedy}"}
    return {}


def old_tensorflow(plan: JobPlan) -> dict[str, str]:
    """Return, as a refusal, a `framework_version` that none of our images can have together with our library."""
    version = plan.options.framework_version
    if version is None or plan.arguments.image_uri or not _uses_library(plan):
        return {}
    if not is_older(version, _TENSORFLOW_NEEDED):
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


def installed_torch() -> str | None:
    """Return the version of this Python's torch, None without torch."""
    return installed_version("torch")


def too_old_here(plan: JobPlan, installed: Callable[[], str | None]) -> dict[str, str]:
    """Return, as a refusal, a setting for which this Python's torch is too old. Imports no torch.

    A job with a requirements.txt is never refused: its Python is made from that file at the start. Nor is one without
    torch here: its script may be of another framework.
    """
    setting = needs_recent_torch(plan.distribution)
    if setting is None or brings_packages(plan):
        return {}
    version = installed()
    if version is None or not is_older(version, RECENT_TORCH):
        return {}
    return {
        setting: f"needs torch {_TORCH_NEEDED} or newer, and ranks run in {sys.executable}, which has {version}:"
        f" `pip install 'torch>={_TORCH_NEEDED}'`, or name torch in the job's requirements.txt"
    }


def too_old_image(plan: JobPlan) -> dict[str, str]:
    """Return, as a refusal, a `framework_version` of our images that is too old for a setting."""
    setting, version = needs_recent_torch(plan.distribution), plan.options.framework_version
    if setting is None or version is None or plan.arguments.image_uri or not is_older(version, RECENT_TORCH):
        return {}
    return {
        "framework_version": f"{version}: {setting} needs torch {_TORCH_NEEDED} or newer; leave framework_version out"
    }
