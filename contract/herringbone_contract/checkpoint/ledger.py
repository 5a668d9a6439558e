"""The ledger of a job with `keep_checkpoints`: a hidden file that each host keeps in its folder of checkpoints."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

import msgspec

from herringbone_contract import safe_tree

_MAX_BYTES = 1 << 26


class Ledger(msgspec.Struct):
    """The facts about a job's checkpoints that outlive a process and an attempt, by the names of entries.

    `since` is the time of the first attempt, in seconds since 1970: what was there before is another job's. `written`
    and `whole` are times of the last change in ns, when the entry was seen and when it was verified. `values` are those
    of the metric. `removed` maps an entry to those of the checkpoint for which it went.
    """

    since: float = 0.0
    written: dict[str, int] = {}
    whole: dict[str, int] = {}
    values: dict[str, float | None] = {}
    removed: dict[str, list[str]] = {}


def ledger_name(job: str, host: str) -> str:
    """Return the name of a host's ledger.

    >>> ledger_name("digits-1", "algo-1")
    '.keep-digits-1-algo-1.json'
    """
    return f".keep-{job}-{host}.json"


def is_ledger(name: str, job: str) -> bool:
    """Report whether a file is the ledger of a host of this job, by its name.

    >>> is_ledger(".keep-digits-1-algo-1.json", "digits-1"), is_ledger(".keep-digits-1-algo-1.json", "digits")
    (True, False)
    """
    return re.fullmatch(rf"\.keep-{re.escape(job)}-algo-[0-9]+\.json", name) is not None


def read_ledgers(folder: str | os.PathLike[str], job: str) -> Ledger:
    """Return the ledgers of a job's hosts in a folder as one; those of a script that writes there may be damaged."""
    whole = Ledger()
    with contextlib.suppress(OSError):
        for path in sorted(Path(folder).iterdir()):
            if is_ledger(path.name, job):
                with contextlib.suppress(OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    one = msgspec.json.decode(
                        safe_tree.read_file(Path(folder), path.name, limit=_MAX_BYTES), type=Ledger
                    )
                    whole.since = min(filter(None, (whole.since, one.since)), default=0.0)
                    for name in ("written", "whole", "values", "removed"):
                        getattr(whole, name).update(getattr(one, name))
    return whole
