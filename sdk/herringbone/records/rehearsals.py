"""The folders of rehearsals, and what the newest one of a code says.

$HERRINGBONE_HOME/rehearsals/NAME/
    rehearsal.json    the result, once the rehearsal is over
    report.html       the same as a page
    checkpoints/      a folder for each run that differs, unless the job has a `checkpoint_s3_uri`
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from herringbone.records.home import Home
from herringbone_contract.errors import JobNameError

RESULT, REPORT, CHECKPOINTS = "rehearsal.json", "report.html", "checkpoints"


class Result(msgspec.Struct, frozen=True):
    """The part of a rehearsal's result that other jobs' descriptions show."""

    name: str
    ended: float
    summary: str
    keys: tuple[str, ...] = ()


def make_folder(home: Home, name: str) -> Path:
    """Create the folder of a rehearsal. Raises `JobNameError` when there is one: its runs would be mixed."""
    home.make()
    folder = home.rehearsal(name)
    home.rehearsals.mkdir(mode=0o700, exist_ok=True)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        raise JobNameError(
            f"rehearsal {name!r}: there is one of this name in {folder}; choose another name, or leave it out to get a "
            "generated one"
        ) from None
    return folder


def results(home: Home) -> list[Result]:
    """Return the results of rehearsals that are over, the newest first; damaged ones are left out."""
    found = []
    for file in home.rehearsals.glob(f"*/{RESULT}"):
        with suppress(OSError, msgspec.MsgspecError, ValueError):
            found.append(msgspec.json.decode(file.read_bytes(), type=Result))
    return sorted(found, key=lambda result: -result.ended)


def sentence(result: Result) -> str:
    """Return what the description of a job says about a rehearsal of the same code.

    >>> sentence(Result("digits-1", 1_796_000_000.0, "9 of 9 equal"))
    'rehearsed 2026-11-30: 9 of 9 equal (digits-1)'
    """
    day = datetime.fromtimestamp(result.ended, timezone.utc).date()
    return f"rehearsed {day}: {result.summary} ({result.name})"
