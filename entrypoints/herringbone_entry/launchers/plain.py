"""The command of a rank: a Python that waits for its start message."""

from __future__ import annotations

# `-m` or a file name would put a folder first on sys.path, where a `signal.py` of the user's hides Python's own.
_START = "import sys; sys.path = [*filter(None, sys.path)]; from herringbone_entry.ranks.rank import main; main()"


def rank_argv(python: str) -> list[str]:
    """Return the command of one rank; its program and arguments come over its link, not on the command line.

    >>> rank_argv("/usr/bin/python3")[:2]
    ['/usr/bin/python3', '-c']
    """
    return [python, "-c", _START]
