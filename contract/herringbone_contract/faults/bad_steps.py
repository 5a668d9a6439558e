"""The steps of a training in which a loss went wrong, as a failure carries them. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple


class BadSteps(NamedTuple):
    """The optimizer steps to go back behind, counted from 0 as checkpoints count them.

    A checkpoint of at most `begin` steps is good, and the data of the steps before `end` is passed over. Each step
    takes `batches` of the loader, 0 where the script's library knows. `begin` is None without a good loss before, both
    are where nobody knows which step a loss is of. `since` is the time of the last good loss, or of the attempt's
    begin, in seconds since 1970.
    """

    since: float
    begin: int | None = None
    end: int | None = None
    batches: int = 0


def parse_bad_steps(value: Any) -> BadSteps | None:
    """Return the steps that a message or a record has; None for anything else.

    >>> parse_bad_steps([7.5, 20, 31, 1]), parse_bad_steps(None)
    (BadSteps(since=7.5, begin=20, end=31, batches=1), None)
    """
    if not isinstance(value, (list, tuple)) or len(value) != len(BadSteps._fields):
        return None
    since, begin, end, batches = value
    is_typed = type(since) in (int, float) and type(batches) is int and batches >= 0
    if not is_typed or any(number is not None and type(number) is not int for number in (begin, end)):
        return None
    return BadSteps(float(since), begin, end, batches)
