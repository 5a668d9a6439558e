"""The place of an export: how far one job's metrics have come at one destination, in the job's folder.

    jobs/<name>/exports/mlflow-1a2b3c4d.json    the place, replaced whole each time
    jobs/<name>/exports/mlflow-1a2b3c4d.lock    held by the process that exports
    jobs/<name>/exports/mlflow-1a2b3c4d.log     output of the process that exports while the job runs

`herringbone rm` may remove the folder under an exporter: then nothing can be written any more, and the exporter ends.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from herringbone.system.processes import identity, may_live, place
from herringbone_contract.errors import InputError
from herringbone_contract.files import try_locked, write_whole
from herringbone_contract.masking import masked_text, printable

if TYPE_CHECKING:
    from herringbone.records.home import JobFolder

# The files of destinations of notices begin so.
NOTICES = "notify-"
_LAST_WORDS_CHARS = 500
# Thousands of series with the longest names.
_MAX_BYTES = 1 << 26


class JobRemovedError(Exception):
    """The job was removed under its exporter, which has nothing to do any more."""


class ExportState(msgspec.Struct):
    """The content of a place.

    `state` is the tracker's own: the id of its run, the size of its file. `rows` are those of `fold.Fold`. `values`
    were sent in all. `ended`: the tracker knows the job's end. `process` exports at the machine `where`, or did.
    """

    destination: str
    state: dict[str, Any] = {}
    rows: list[list[Any]] = []
    values: int = 0
    ended: bool = False
    error: str = ""
    process: str | None = None
    where: str = ""


class Place:
    """The place of one export in the folder `exports` of a job; `stem` is the destination's `file_name`."""

    def __init__(self, exports: Path, stem: str) -> None:
        self._exports = exports
        self._stem = stem

    @property
    def log(self) -> Path:
        return self._exports / f"{self._stem}.log"

    def read(self, destination: str) -> ExportState:
        """Return what is stored; a new one for a destination that the job was never exported to."""
        return _read(self._exports / f"{self._stem}.json") or ExportState(destination)

    def write(self, state: ExportState) -> None:
        """Replace what is stored. Raises `JobRemovedError` when the job's folder is gone."""
        try:
            self._write(state)
        except FileNotFoundError:
            raise JobRemovedError from None

    def write_first(self, state: ExportState) -> None:
        """Write what is stored first, unless the exporter itself was faster."""
        with suppress(FileExistsError):
            self._write(state, exclusive=True)

    def held(self, job: str) -> FileIO:
        """Keep other processes from exporting to the same destination. Raises `InputError` when one does."""
        if (lock := try_locked(self._exports / f"{self._stem}.lock")) is None:
            raise InputError(
                f"job {job}: another process exports it to this destination at this moment; its values arrive "
                f"without you (`herringbone describe {job}` shows how many)"
            )
        return lock

    def _write(self, state: ExportState, *, exclusive: bool = False) -> None:
        write_whole(self._exports / f"{self._stem}.json", msgspec.json.encode(state), exclusive=exclusive)


def make_exports(folder: JobFolder) -> Path:
    """Return the folder `exports` of a job, made private; jobs of a service have no other folder here."""
    for path in (folder.path, folder.exports):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder.exports


def this_process() -> dict[str, Any]:
    """Return the members of `ExportState` that name this process."""
    return {"process": identity(os.getpid()), "where": place()}


def with_exports(description: Mapping[str, Any], folder: JobFolder) -> dict[str, Any]:
    """Return the description of a job with its exports, below `Herringbone`; as it is without any."""
    members: dict[str, list[dict[str, Any]]] = {}
    # `glob` finds nothing in a folder that does not exist.
    for path in sorted(folder.exports.glob("*.json")):
        if (state := _read(path)) is not None:
            kind = "Notify" if path.name.startswith(NOTICES) else "Trackers"
            members.setdefault(kind, []).append(_described(folder.path.name, path, state))
    if not members:
        return dict(description)
    return {**description, "Herringbone": {**description.get("Herringbone", {}), **members}}


def _described(job: str, path: Path, stored: ExportState) -> dict[str, Any]:
    error, told = stored.error, path.name.startswith(NOTICES)
    if stored.ended:
        state = "Done"
    elif stored.process is not None and may_live(stored.process, stored.where or None):
        state = "Sending" if told else "Exporting"
    else:
        state = "Interrupted"
        error = error or _last_words(path.with_suffix(".log"))
        error = f"{error}; " if error else ""
        verb = f"notify {job}" if told else f"export {job} --to {stored.destination}"
        error = f"{error}`herringbone {verb}` goes on where it ended"
    address = stored.state.get("address")
    members = {
        "To": stored.destination,
        "State": state,
        "Sent" if told else "Values": stored.values,
        "Run": address,
        "Error": error,
    }
    return {name: value for name, value in members.items() if value not in (None, "")}


def _read(path: Path) -> ExportState | None:
    # A damaged file is as none: the values are sent again.
    with suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        if path.stat().st_size <= _MAX_BYTES:
            return msgspec.json.decode(path.read_bytes(), type=ExportState)
    return None


def _last_words(log: Path) -> str:
    """Return the last line of a log, "" without one."""
    with suppress(OSError), log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 4096))
        lines = file.read().decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        # A package's message may quote the answer of a server.
        return printable(masked_text(last))[-_LAST_WORDS_CHARS:]
    return ""
