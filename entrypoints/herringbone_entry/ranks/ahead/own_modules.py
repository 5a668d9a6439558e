"""Say which modules are of the job's own code."""

from __future__ import annotations

import os
from collections.abc import Iterable

_SUFFIXES = (".py", ".so", ".pyc")


def has_module(folders: Iterable[str], name: str) -> bool:
    """Say whether one of the folders has a module, or a package with `__init__.py`, of that name."""
    for folder in folders:
        if os.path.isfile(f"{folder}/{name}/__init__.py"):  # noqa: PTH113 - pathlib costs a rank milliseconds
            return True
        try:
            files = os.listdir(folder)  # noqa: PTH208
        except OSError:
            continue
        # An extension's name goes on: `name.cpython-311-x86_64-linux-gnu.so`.
        if any(file.startswith(f"{name}.") and file.endswith(_SUFFIXES) for file in files):
            return True
    return False
