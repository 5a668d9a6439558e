"""Check that the packages of a job's trackers are installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from typing import TYPE_CHECKING

from herringbone_contract.errors import OptionError

if TYPE_CHECKING:
    from herringbone.plan.destinations import Destination

# Trackers whose package has another name than its modules.
_PACKAGES = {"mlflow": "mlflow-skinny"}


def check_installed(destinations: Iterable[Destination], where: str = "track") -> None:
    """Raise `OptionError` for a destination whose package is not installed."""
    for name in dict.fromkeys(destination.tracker for destination in destinations):
        spec = importlib.util.find_spec(name)
        # A folder of that name in the current one is no package: W&B makes a folder `wandb`.
        if spec is None or spec.origin is None:
            raise OptionError(
                f"{where}: {name}: its package is not installed in this Python; run pip install '.[{name}]' in your "
                f"clone of Herringbone, or pip install {_PACKAGES.get(name, name)}"
            )
