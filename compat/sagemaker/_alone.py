"""Refuse to run next to the real SDK."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import distributions

_OURS = "+herringbone"


def check(versions: Sequence[str] | None = None) -> None:
    """Raise ImportError if the real `sagemaker` is installed, too: each has overwritten files of the other.

    >>> check(["2.257.7+herringbone"])

    `versions` are those of all installed distributions named sagemaker; None looks them up.
    """
    if versions is None:
        versions = [found.version for found in distributions(name="sagemaker")]
    real = [version for version in versions if not version.endswith(_OURS)]
    if real:
        raise ImportError(
            f"sagemaker {real[0]} and herringbone-sagemaker are both installed, and have the same files. Keep one:\n"
            "  Herringbone's: pip uninstall -y sagemaker herringbone-sagemaker; pip install ./compat (in a checkout)\n"
            f"  AWS's: pip uninstall -y herringbone-sagemaker; pip install --force-reinstall sagemaker=={real[0]}"
        )
