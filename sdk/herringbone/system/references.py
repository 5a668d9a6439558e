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
    if kind == "env":
        value, what = os.environ.get(place, ""), f"the variable {place} is not set in this process"
    elif kind == "file":
        try:
            with Path(place).open("rb") as file:
                value, what = file.read(_MAX_BYTES).decode().strip(), f"{place} is empty"
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no text"
            value, what = "", f"{place} cannot be read: {reason}"
    else:
        return text
    if not value:
        raise OptionError(f"{where}: {what}; the value itself is stored nowhere, so it has to be there")
    return value
