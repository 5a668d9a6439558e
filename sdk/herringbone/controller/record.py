"""The record of a job that its controller writes: the row in the index, or a file when the index is on another machine.

Imported when it is first needed: loading sqlite takes milliseconds in which the user waits for the first line.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
import traceback
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from herringbone.controller.log_files import complain
from herringbone.protocols.controller_config import ControllerConfig
from herringbone.records.end_file import EndFile
from herringbone.records.home import Home
from herringbone.records.index import FAILED, STOPPING, TRAINING, JobIndex, JobRecord
from herringbone.records.job_events import JobEvents
from herringbone.records.state_lines import why_of
from herringbone.slots.release import free
from herringbone_contract.errors import HerringboneError
from herringbone_contract.failure import Failure
from herringbone_contract.files import write_whole

# The loop that drains the hosts' output waits this long for another process's lock of the index.
_BUSY_SECONDS = 1.0
_PAUSE_SECONDS = 0.5
# A controller whose job is over waits this long for the index when the end is saved, and when it could not be saved.
_PATIENCE_SECONDS = 10.0
_UNSAVED_PATIENCE_SECONDS = 24 * 3600.0


class Record(Protocol):
    """One job's columns of the index, wherever they are written."""

    def update(self, **columns: Any) -> None:
        """Change some columns; a job that is over does not change. Columns that cannot be written now come later."""

    def finish(self, **columns: Any) -> None:
        """Write the columns of a job that is over, and return when they are written."""

    def requested_grace(self) -> float | None:
        """Return the grace, in seconds, of the stop request; None for the job's own."""


class IndexRecord:
    """The job's row in the index of this machine.

    An index that is locked, damaged, or on a full or read-only disk does not end the job. States come later. The end is
    saved in the job's folder, where the next look at the job finds it. An end that could not be saved is waited for.
    """

    def __init__(
        self,
        index: Path,
        job: str,
        *,
        busy_seconds: float = _BUSY_SECONDS,
        patience: float = _PATIENCE_SECONDS,
        unsaved_patience: float = _UNSAVED_PATIENCE_SECONDS,
    ) -> None:
        self._index = JobIndex(index, busy_seconds=busy_seconds)
        self._folder = Home(index.parent).job(job).path
        self._end = EndFile(Home(index.parent).job(job).end)
        self._end.reserve()
        self._job = job
        self._patience, self._unsaved_patience = patience, unsaved_patience
        # Columns that could not be written yet.
        self._pending: dict[str, Any] = {}
        # The row as it was last read or written, to restore it in an index that was replaced by a new one.
        self._row: JobRecord | None = None

    def update(self, **columns: Any) -> None:
        self._write(columns)

    def finish(self, **columns: Any) -> None:
        begin, saved = time.monotonic(), False
        while not self._write(columns):
            saved = saved or self._end.write(columns)
            patience = self._patience if saved else self._unsaved_patience
            # Without its folder the job was removed, and nobody will look for its end.
            if time.monotonic() - begin > patience or not self._folder.is_dir():
                return
            time.sleep(_PAUSE_SECONDS)
        self._end.remove()
        # In this order: `remove` takes the row and the folder away in one step, after which neither exists.
        if self._row is not None and not self._known() and self._folder.is_dir():
            self._index.add(replace(self._row, **columns))

    def requested_grace(self) -> float | None:
        with contextlib.suppress(HerringboneError):
            return self._index.get(self._job).stop_grace
        return None

    def _write(self, columns: dict[str, Any]) -> bool:
        """Write the columns and those that are pending; return whether that was possible."""
        self._pending.update(columns)
        try:
            # A client may have marked the job as lost meanwhile, and that must stay.
            if self._index.update(self._job, unless_done=True, **self._pending) and self._row is None:
                self._row = self._index.get(self._job)
        except HerringboneError as error:
            complain(f"job {self._job}: {error}")
            return False
        self._pending = {}
        return True

    def _known(self) -> bool:
        with contextlib.suppress(HerringboneError):
            self._index.get(self._job)
            return True
        return False


class FileRecord:
    """A JSON file that other machines read, and the file of a stop request next to it.

    sqlite needs locks that file systems between machines often do not keep. Here one process writes each file, and
    replaces the whole file by a rename, so that a reader never sees half of it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def begin(self, **columns: Any) -> None:
        """Write these columns and drop all others, which an earlier attempt's controller wrote."""
        self._write(columns)

    def update(self, **columns: Any) -> None:
        # Read and write need no lock: the controller is the only writer of its report.
        self._write({**read_report(self._path), **columns})

    def finish(self, **columns: Any) -> None:
        # Nothing else knows the end of a job whose machine loses its power now.
        self._write({**read_report(self._path), **columns}, synced=True)

    def requested_grace(self) -> float | None:
        request = read_stop_request(self._path)
        return None if request is None else request["grace"]

    def _write(self, columns: dict[str, Any], *, synced: bool = False) -> None:
        write_whole(self._path, json.dumps(columns).encode(), mode=0o666, synced=synced)


def read_report(path: Path) -> dict[str, Any]:
    """Return the columns that a controller has written so far; empty while there is no file."""
    try:
        columns: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    return columns


def read_stop_request(report: Path) -> dict[str, Any] | None:
    """Return the stop request next to a report, `{"grace": seconds or None}`; None while nobody asked for a stop."""
    try:
        request: dict[str, Any] = json.loads(stop_request_path(report).read_text())
    except FileNotFoundError:
        return None
    return request


def write_stop_request(report: Path, grace: float | None) -> None:
    """Ask the controller that writes `report` to stop the job, with `grace` seconds or the job's own."""
    write_whole(stop_request_path(report), json.dumps({"grace": grace}).encode(), mode=0o666)


def stop_request_path(report: Path) -> Path:
    """Return the path of the stop request.

    >>> stop_request_path(Path("job/report.json"))
    PosixPath('job/stop.json')
    """
    return report.with_name("stop.json")


class RecordWithEvents:
    """A record whose changes of state are events of the job, too."""

    def __init__(self, record: Record, events: JobEvents) -> None:
        self._record, self._events = record, events

    def update(self, **columns: Any) -> None:
        self._note(columns)
        self._record.update(**columns)

    def finish(self, **columns: Any) -> None:
        # The event first: whoever reads the record's end has read all events by then.
        self._note(columns)
        self._record.finish(**columns)

    def requested_grace(self) -> float | None:
        return self._record.requested_grace()

    def _note(self, columns: dict[str, Any]) -> None:
        if "secondary_status" in columns:
            self._events.state(columns["secondary_status"], why_of(columns))


def record_of(config: ControllerConfig) -> Record:
    """Return the record that this job's controller writes."""
    return RecordWithEvents(_record_of(config), job_events(config))


def job_events(config: ControllerConfig) -> JobEvents:
    """Return the events about the whole job, which its controller writes."""
    return JobEvents(f"{config['logs']}/job.events")


def _record_of(config: ControllerConfig) -> Record:
    if config["report"] is not None:
        return FileRecord(Path(config["report"]))
    assert config["index"] is not None
    return _index_record(config["index"], config["job"])


@lru_cache(maxsize=1)
def _index_record(index: str, job: str) -> IndexRecord:
    """Return the one record of this process's job, which remembers what could not be written yet."""
    return IndexRecord(Path(index), job)


def training(config: ControllerConfig, *, first: bool) -> None:
    """Record that the hosts have been started; `first` is False for a restart by the same controller."""
    # A restart keeps the start of the first attempt: the duration is that of the whole job.
    started = {"started": time.time()} if first else {}
    record_of(config).update(secondary_status=TRAINING, **started)


def stopping(config: ControllerConfig) -> float | None:
    """Record that the job is stopping; return the requested grace in seconds, None for the job's own."""
    record = record_of(config)
    record.update(status=STOPPING, secondary_status=STOPPING)
    return record.requested_grace()


def stopping_while_packing(config: ControllerConfig) -> None:
    """Record a request to stop that came after the training: the packing goes on."""
    record_of(config).update(status=STOPPING)


def broken(config: ControllerConfig, error: BaseException) -> None:
    """Record the failure of the controller itself, and remove the run folder."""
    # Standard error is the job's controller.log.
    complain("".join(traceback.format_exception(error)))
    shutil.rmtree(config["run_folder"], ignore_errors=True)
    free(config["claim"])
    failure = Failure(exception=type(error).__name__, message=f"the job's controller could not go on: {error}")
    record_of(config).finish(status=FAILED, secondary_status=FAILED, ended=time.time(), failure=failure.to_json())
