"""Say what there is where a path of the user leads nowhere."""

from __future__ import annotations

from pathlib import Path

from herringbone_contract.errors import near_words

_SHOWN_NAMES = 5


def alternatives(path: Path) -> str:
    """Return a hint for a message about a path that does not exist.

    >>> alternatives(Path("/usr/bim/python"))
    '; did you mean /usr/bin?'

    The hint is the nearest name in the first folder that exists, or the names in that folder; "" if it is unreadable.
    """
    missing = path.absolute()
    while not missing.parent.is_dir():
        missing = missing.parent
    folder = missing.parent
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return ""
    if near := near_words(missing.name, names):
        return f"; did you mean {folder / near[0]}?"
    shown = [name for name in names if not name.startswith(".")]
    rest = f" and {len(shown) - _SHOWN_NAMES} more" if len(shown) > _SHOWN_NAMES else ""
    return f"; {folder} has {', '.join(shown[:_SHOWN_NAMES]) or 'no files'}{rest}"
