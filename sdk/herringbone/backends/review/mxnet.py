"""Check, as far as a plan can know, that a job's script will be able to import MXNet."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import PurePath

from herringbone.backends.review.checks import brings_packages
from herringbone.plan.plan import JobPlan
from herringbone.system.packages import installed_version, release_of

# The first numpy without `numpy.bool`, which MXNet's last release reads when it is imported.
_NUMPY_TOO_NEW = (1, 24)
_REMEDY = (
    "`pip install mxnet==1.9.1 'numpy<1.24'` on Python 3.10 or 3.11, or name mxnet==1.9.1 and numpy<1.24 in the job's"
)
_REMEDY += " requirements.txt"

# The versions of this Python's MXNet and numpy; None for a package that is not installed.
Installed = tuple[str | None, str | None]


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
        return {"MXNet": f"not there: {python} none: {_REMEDY}"}
    # MXNet without a numpy does not import either.
    if numpy is None or (release_of(numpy) or (0, 0)) >= _NUMPY_TOO_NEW:
        return {"MXNet": f"needs a numpy older than 1.24, and {python} {numpy or 'none'}: {_REMEDY}"}
    return {}
