"""Refuse to run next to the real SDK, and say by name what is not here."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import distributions
from typing import Any, NoReturn

_OURS = "+herringbone"
_PAGE = "docs/start/from-aws.md lists the names that are here"


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


def refuse(module: str, name: str) -> NoReturn:
    """Raise ImportError for a name of the SDK that is not here; AttributeError for a name that Python asks for."""
    if name.startswith("_"):
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    raise ImportError(
        f"{module}.{name}: Herringbone trains, and has no such name; {_PAGE}, and boto3 calls what AWS alone can do"
    )


class _Explaining(MetaPathFinder):
    """Explains a submodule of the SDK that is not here. The last finder: it only hears of modules that nobody has."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:  # noqa: ARG002
        if name.startswith("sagemaker.") and not name.rpartition(".")[2].startswith("_"):
            raise ModuleNotFoundError(f"{name}: Herringbone trains, and has no such module; {_PAGE}", name=name)
        return None


def explain_missing_modules() -> None:
    """Have imports of missing submodules say what is here."""
    if not any(isinstance(finder, _Explaining) for finder in sys.meta_path):
        sys.meta_path.append(_Explaining())
