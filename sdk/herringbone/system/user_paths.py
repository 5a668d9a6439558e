"""Find the user's home folder, and replace `~` in paths that users write."""

from __future__ import annotations

import os
from pathlib import Path

from herringbone_contract.errors import UsageError


def expanded(path: str | os.PathLike[str]) -> Path:
    """Return a path with a leading `~` or `~user` replaced; the name of an unknown user stays as it is written.

    >>> expanded("~nobody-of-that-name/data")
    PosixPath('~nobody-of-that-name/data')

    `Path.expanduser` raises a RuntimeError there, and the path itself then is the better message: no such file.
    """
    return Path(os.path.expanduser(path))  # noqa: PTH111


def home_folder() -> Path:
    """Return the user's home folder. Raises `UsageError` for a user without one: no HOME, no entry in /etc/passwd."""
    try:
        return Path.home()
    except RuntimeError:
        raise UsageError(
            f"user {os.getuid()} has no home folder: set HOME, or set HERRINGBONE_HOME to a folder for jobs"
        ) from None


def current_folder() -> Path:
    """Return the current folder, also one that has been removed: paths below it then are missing by their names."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return Path("/proc/self/cwd").readlink()
