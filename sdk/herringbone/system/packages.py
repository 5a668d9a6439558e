"""Look up which version of a package this Python has, without importing the package, and compare versions."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re


def installed_version(*packages: str, module: str | None = None) -> str | None:
    """Return the version of the first of these packages that is installed, None if none is.

    >>> installed_version("no-such-package", module="json"), installed_version("no-such-package")
    ('', None)

    "" stands for an unknown version: a package of another name, or a build without metadata, provides `module`.
    """
    for package in packages:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None if module is None or importlib.util.find_spec(module) is None else ""


def release_of(version: str) -> tuple[int, int] | None:
    """Return the first two numbers of a version; None for a version without two, such as "2".

    >>> release_of("2.13.0+cpu"), release_of("2")
    ((2, 13), None)
    """
    numbers = re.match(r"(\d{1,9})\.(\d{1,9})", version)
    return None if numbers is None else (int(numbers[1]), int(numbers[2]))


def is_older(version: str, release: tuple[int, int]) -> bool:
    """Say whether a version is older than a release; an unknown one, such as "" or "2", counts as new enough.

    >>> is_older("2.5.1", (2, 6)), is_older("2.6.0", (2, 6)), is_older("", (2, 6))
    (True, False, False)
    """
    known = release_of(version)
    return known is not None and known < release
