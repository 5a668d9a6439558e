"""The job that a user means by a short name. Pure: a word and the known names in, one name out."""

from __future__ import annotations

from collections.abc import Sequence

from herringbone_contract.errors import JobNotFoundError

NEWEST = "-"
# Begins the name of a thread that fetches the results of the job whose name follows.
RESULTS = "results of job "
_MOST_LISTED = 5


def find_name(word: str, names: Sequence[str], *, kind: str = "job") -> str:
    """Return the name that a word stands for, among `names`, of which the newest job's is the first.

    >>> find_name("dig", ["train-2", "digits-1"]), find_name("-", ["train-2", "digits-1"])
    ('digits-1', 'train-2')

    `-` is the newest job. A whole name wins over longer ones that begin with it. A word that begins no name is returned
    as it is, because a service may know a job of that name. Raises `JobNotFoundError` when several names begin with
    the word, and for `-` when there is no job. `kind` is the word for the names in messages.
    """
    if word == NEWEST:
        if not names:
            raise JobNotFoundError(f"there is no newest {kind}: no {kind} has run on this machine yet")
        return names[0]
    # Every name begins with the empty word, which a script's unset variable becomes.
    if not word or word in names:
        return word
    matches = [name for name in names if name.startswith(word)]
    if len(matches) > 1:
        more = f" and {len(matches) - _MOST_LISTED} more" if len(matches) > _MOST_LISTED else ""
        raise JobNotFoundError(
            f"{len(matches)} {kind}s have names that begin with {word!r}: {', '.join(matches[:_MOST_LISTED])}{more}; "
            "write more of the name"
        )
    return matches[0] if matches else word
