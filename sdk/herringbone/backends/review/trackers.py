"""Check what the destinations of a job need on this machine: packages of trackers, programs and secrets of notices."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from herringbone.plan.notify import absolute_notify, check_address
from herringbone.system.references import read_reference
from herringbone_contract.errors import OptionError

if TYPE_CHECKING:
    from herringbone.plan.destinations import Destination
    from herringbone.plan.notify import Notify

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


def check_notices(destinations: Sequence[Notify], folder: Path) -> None:
    """Raise `OptionError` for a destination whose program, variable or file is not there, before a weekend without."""
    for position, one in enumerate(absolute_notify(destinations, folder)):
        where = f"notify[{position}]"
        values = {name: read_reference(f"{where}.{name}", text) for name, text in one.references.items()}
        if "webhook" in values:
            check_address(f"{where}.webhook", values["webhook"])
        if one.command is not None and not shutil.which(_program(one.command[0], folder)):
            raise OptionError(f"{where}.command: there is no program {one.command[0]!r}; write its path")


def _program(word: str, folder: Path) -> str:
    """Return the word by which a program is found: a path is relative to the job's folder, as when it is started."""
    return os.path.join(folder, word) if "/" in word else word  # noqa: PTH118 - `which` takes a text
