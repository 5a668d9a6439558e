"""Check, as far as a plan can know, that a job's script will be able to import MXNet."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import PurePath

from herringbone.planning.checks import brings_packages
from herringbone.planning.plan import JobPlan

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
    mxnet = _version("mxnet")
    if mxnet is None and importlib.util.find_spec("mxnet") is not None:
        mxnet = ""  # a package for GPUs, which has another name, or a build without metadata
    return mxnet, _version("numpy")


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
    if numpy is None or _release(numpy) >= _NUMPY_TOO_NEW:
        return {"MXNet": f"needs a numpy older than 1.24, and {python} {numpy or 'none'}: {_REMEDY}"}
    return {}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _release(version: str) -> tuple[int, int]:
    numbers = re.match(r"(\d{1,9})\.(\d{1,9})", version)
    return (0, 0) if numbers is None else (int(numbers[1]), int(numbers[2]))
