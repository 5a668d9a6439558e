"""Replace `~` in paths that users write."""

from __future__ import annotations

import os
from pathlib import Path


def expanded(path: str | os.PathLike[str]) -> Path:
    """Return a path with a leading `~` or `~user` replaced; the name of an unknown user stays as it is written.

    >>> expanded("~nobody-of-that-name/data")
    PosixPath('~nobody-of-that-name/data')

    `Path.expanduser` raises a RuntimeError there, and the path itself then is the better message: no such file.
    """
    return Path(os.path.expanduser(path))  # noqa: PTH111
