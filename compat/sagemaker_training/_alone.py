"""Refuse to run next to a toolkit of AWS's, with whose files ours have been mixed."""

from __future__ import annotations

from importlib.metadata import distributions


def check(name: str) -> None:
    """Raise ImportError if AWS's distribution of this name is installed, too: this one has none of its own.

    >>> check("sagemaker-none")
    """
    real = next((found.version for found in distributions(name=name)), None)
    if real is not None:
        raise ImportError(
            f"{name} {real} and herringbone-sagemaker are both installed, and have the same files. Keep one:\n"
            f"  Herringbone's: pip uninstall -y {name}; pip install --force-reinstall ./compat (in a checkout)\n"
            f"  AWS's: pip uninstall -y herringbone-sagemaker; pip install --force-reinstall {name}=={real}"
        )
