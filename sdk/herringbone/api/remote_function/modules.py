"""Find the modules of the user's own that a function may import in a job. Pure, apart from `loaded_modules`."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

# The files of a job's own, and packages that every job has.
_NOT_LOCAL = ("herringbone", "herringbone_contract", "herringbone_entry", "herringbone_parallel", "cloudpickle")


class Loaded(NamedTuple):
    """A module that this Python has imported: its name, and the file or folders that it came from."""

    name: str
    paths: tuple[str, ...]


def loaded_modules() -> list[Loaded]:
    """Return the top-level modules that this Python has imported, with their places."""
    modules = []
    for name, module in list(sys.modules.items()):
        if "." in name or name == "__main__":
            continue
        # A package may be a folder without a file. Other objects in `sys.modules` have whatever they like.
        folders, file = getattr(module, "__path__", None), getattr(module, "__file__", None)
        if folders is not None:
            modules.append(Loaded(name, tuple(map(str, folders))))
        elif isinstance(file, str):
            modules.append(Loaded(name, (file,)))
    return modules


def local_modules(loaded: Iterable[Loaded], *, folder: Path, installed: Iterable[str]) -> list[Path]:
    """Return the files and folders of the modules that lie below `folder`, and not in a place of installed packages.

    >>> loaded = [Loaded("helpers", ("/me/helpers.py",)), Loaded("json", ("/usr/lib/python3.11/json",))]
    >>> local_modules(loaded, folder=Path("/me"), installed=["/me/.venv/lib"])
    [PosixPath('/me/helpers.py')]
    """
    places, places_of_packages = set(), list(installed)
    for module in loaded:
        if module.name in _NOT_LOCAL:
            continue
        for path in module.paths:
            if _is_below(path, str(folder)) and not _is_installed(path, places_of_packages):
                places.add(Path(path))
    return sorted(places)


def installed_places() -> list[str]:
    """Return the folders of this Python's own modules and of installed packages."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return [os.path.realpath(path) for path in {sysconfig.get_path(name) for name in names} if path]


def _is_installed(path: str, installed: Iterable[str]) -> bool:
    # By their names as well: a user's own packages, and those of other environments on the path.
    if {"site-packages", "dist-packages"} & set(Path(path).parts):
        return True
    return any(_is_below(path, place) for place in installed)


def _is_below(path: str, folder: str) -> bool:
    return os.path.realpath(path).startswith(f"{os.path.realpath(folder)}/")
