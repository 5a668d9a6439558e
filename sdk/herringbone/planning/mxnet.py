"""Whether a job's script will find an MXNet that can be imported, as far as a plan can know."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import PurePath

from herringbone.planning.checks import brings_packages
from herringbone.planning.plan import JobPlan

# The first numpy without `numpy.bool`, which MXNet's last release asks for when it is imported.
_NUMPY_TOO_NEW = (1, 24)
_WAY = "`pip install 'herringbone[mxnet]'` on Python 3.10 or 3.11, or name mxnet==1.9.1 and numpy<1.24 in the job's"
_WAY += " requirements.txt"

# The versions of this Python's MXNet and numpy; None for one that it has not.
Installed = tuple[str | None, str | None]


def installed_mxnet() -> Installed:
    """Return what this Python has: "" for an MXNet that does not say its version."""
    mxnet = _version("mxnet")
    if mxnet is None and importlib.util.find_spec("mxnet") is not None:
        mxnet = ""  # one of the packages for GPUs, or built by hand
    return mxnet, _version("numpy")


def missing_mxnet(plan: JobPlan, installed: Callable[[], Installed]) -> dict[str, str]:
    """Return, as refusals, what a script for MXNet needs and ranks will not find; nothing is imported.

    A job with a requirements.txt runs in a Python of its own, of which nothing is known yet.
    """
    assert plan.source is not None
    is_python = PurePath(plan.source.entry_point).suffix == ".py"
    if plan.estimator != "MXNet" or not is_python or brings_packages(plan):
        return {}
    mxnet, numpy = installed()
    where = f"ranks run in {sys.executable}, which has"
    if mxnet is None:
        return {"MXNet": f"not there: {where} none: {_WAY}"}
    if numpy is None or _release(numpy) >= _NUMPY_TOO_NEW:
        return {"MXNet": f"needs a numpy older than 1.24, and {where} {numpy or 'none'}: {_WAY}"}
    return {}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _release(version: str) -> tuple[int, int]:
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return (0, 0) if numbers is None else (int(numbers[1]), int(numbers[2]))
