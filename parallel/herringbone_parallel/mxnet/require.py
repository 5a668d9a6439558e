"""Checks that MXNet is installed and can be imported, with a message that says what to install."""

from __future__ import annotations

import importlib.metadata
import importlib.util

from herringbone_contract.errors import ParallelError

# The first release of numpy without `numpy.bool`, which MXNet needs when it is imported.
_TOO_NEW = (1, 24)


def require_mxnet() -> None:
    """Raise `ParallelError` unless MXNet and a numpy that it supports are installed."""
    if importlib.util.find_spec("mxnet") is None:
        raise ParallelError(
            "MXNet is not installed in the Python of this rank: add `mxnet==1.9.1` and `numpy<1.24` to the job's"
            " requirements.txt (on Python 3.10 or 3.11), or use an image that has them"
        )
    numpy = importlib.metadata.version("numpy")
    if tuple(int(part) for part in numpy.split(".")[:2]) >= _TOO_NEW:
        raise ParallelError(
            f"numpy {numpy}: MXNet's last release, 1.9.1, needs one older than 1.24: pip install 'numpy<1.24', which"
            " exists for Python 3.10 and 3.11"
        )
