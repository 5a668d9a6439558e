"""Checks of values that another process sent, before they are used. Pure.

    members = whole(hello, "members", 1, MOST_RANKS)

Each function raises `ParallelError` with the name and the value. JSON knows numbers of any size, but the cores store
32 bits, and a count of a billion hosts is a list of a billion names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from herringbone_contract.errors import ParallelError

MOST_RANKS = 1 << 20
_MOST_CHARACTERS = 512
# A week: no time limit of a job is longer, and the system's own limits are far beyond it.
_MOST_SECONDS = 7 * 24 * 3600.0


def whole(message: Mapping[str, Any], name: str, least: int, most: int) -> int:
    """Return an integer within limits.

    >>> whole({"rank": 3}, "rank", 0, 7)
    3
    """
    value = message[name]
    # A bool is an int for Python, and a float may be infinite.
    if type(value) is not int or not least <= value <= most:
        raise ParallelError(f"{name} is {_shown(value)}: it is a number from {least} to {most}")
    return value


def seconds(message: Mapping[str, Any], name: str) -> float:
    """Return a finite number of seconds above 0."""
    value = message[name]
    if type(value) not in (int, float) or not 0 < value <= _MOST_SECONDS or not math.isfinite(value):
        raise ParallelError(f"{name} is {_shown(value)}: it is a number of seconds up to {_MOST_SECONDS:.0f}")
    return float(value)


def text(message: Mapping[str, Any], name: str) -> str:
    """Return a text of one line that can be written in any encoding of Unicode."""
    value = message[name]
    # A lone surrogate, which JSON allows, and control characters are not printable.
    if not isinstance(value, str) or len(value) > _MOST_CHARACTERS or not value.isprintable():
        raise ParallelError(f"{name} is {_shown(value)}: it is a line of at most {_MOST_CHARACTERS} characters")
    return value


def _shown(value: object) -> str:
    return repr(value) if isinstance(value, (int, float, str)) and len(repr(value)) < 80 else type(value).__name__
