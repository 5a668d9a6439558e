"""The record of a job that its controller writes: the row in the index, or a file when the index is on another machine.

Imported when it is first needed: loading sqlite takes milliseconds in which the user waits for the first line.
"""

from __future__ import annotations

import json
import shutil
import time
import traceback
from pathlib import Path
from typing import Any, Protocol

from herringbone.controller.config import ControllerConfig
from herringbone.jobs.index import FAILED, STOPPING, TRAINING, JobIndex
from herringbone_contract.failure import Failure


class Record(Protocol):
    """One job's columns of the index, wherever they are written."""

    def update(self, **columns: Any) -> None:
        """Change some columns; a job that is over does not change."""

    def requested_grace(self) -> float | None:
        """Return the grace, in seconds, of the stop request; None for the job's own."""


class IndexRecord:
    """The job's row in the index of this machine."""

    def __init__(self, index: Path, job: str) -> None:
        self._index = JobIndex(index)
        self._job = job

    def update(self, **columns: Any) -> None:
        # A client may have marked the job as lost meanwhile, and that must stay.
        self._index.update(self._job, unless_done=True, **columns)

    def requested_grace(self) -> float | None:
        return self._index.get(self._job).stop_grace


class FileRecord:
    """A JSON file that other machines read, and the file of a stop request next to it.

    sqlite needs locks that file systems between machines often do not keep. Here one process writes each file, and
    replaces the whole file by a rename, so that a reader never sees half of it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def begin(self, **columns: Any) -> None:
        """Write these columns and drop all others, which an earlier attempt's controller wrote."""
        _replace(self._path, columns)

    def update(self, **columns: Any) -> None:
        # Read and write need no lock: the controller is the only writer of its report.
        self.begin(**{**read_report(self._path), **columns})

    def requested_grace(self) -> float | None:
        request = read_stop_request(self._path)
        return None if request is None else request["grace"]


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
    _replace(stop_request_path(report), {"grace": grace})


def stop_request_path(report: Path) -> Path:
    """Return the path of the stop request.

    >>> stop_request_path(Path("job/report.json"))
    PosixPath('job/stop.json')
    """
    return report.with_name("stop.json")


def record_of(config: ControllerConfig) -> Record:
    """Return the record that this job's controller writes."""
    if config["report"] is not None:
        return FileRecord(Path(config["report"]))
    assert config["index"] is not None
    return IndexRecord(Path(config["index"]), config["job"])


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


def broken(config: ControllerConfig, error: BaseException) -> None:
    """Record the failure of the controller itself, and remove the run folder."""
    # Standard error is the job's controller.log.
    traceback.print_exception(error)
    shutil.rmtree(config["run_folder"], ignore_errors=True)
    failure = Failure(exception=type(error).__name__, message=f"the job's controller could not go on: {error}")
    record_of(config).update(status=FAILED, secondary_status=FAILED, ended=time.time(), failure=failure.to_json())


def _replace(path: Path, content: dict[str, Any]) -> None:
    """Write JSON to a file next to `path` and rename it: rename is atomic, also on NFS."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(content))
    partial.replace(path)
