"""Read the values that `env:NAME` and `file:PATH` stand for, such as secrets, which are stored nowhere else."""

from __future__ import annotations

import os
from pathlib import Path

from herringbone_contract.errors import OptionError

_MAX_BYTES = 1 << 16


def read_reference(where: str, text: str) -> str:
    """Return the value that a reference stands for; the text itself if it is none.

    >>> read_reference("notify", "https://ci.example.com")
    'https://ci.example.com'

    Raises `OptionError`, which names the place and never the value, for one that is missing or empty.
    """
    kind, _, place = text.partition(":")
    if kind not in ("env", "file"):
        return text
    try:
        value = os.environ.get(place, "")
        if kind == "file":
            with Path(place).open("rb") as file:
                value = file.read(_MAX_BYTES).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"{where}: {place} cannot be read: {getattr(error, 'strerror', 'it is no text')}") from None
    if not value:
        what = f"the variable {place} is not set in this process" if kind == "env" else f"{place} is empty"
        raise OptionError(f"{where}: {what}; the value itself is stored nowhere, so it has to be there")
    return value
