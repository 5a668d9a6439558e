"""Ranks that each host's supervisor starts by itself: nothing but a Python for each."""

from __future__ import annotations

# `-m` or a file name would put a folder first on sys.path, where the user's own `signal.py` hides Python's from us.
_START = "import sys; sys.path = [*filter(None, sys.path)]; from herringbone_entry.ranks.rank import main; main()"


def rank_argv(python: str) -> list[str]:
    """Return the command of one rank; what it shall run comes over its link, not on the command line.

    >>> rank_argv("/usr/bin/python3")[:2]
    ['/usr/bin/python3', '-c']
    """
    return [python, "-c", _START]
