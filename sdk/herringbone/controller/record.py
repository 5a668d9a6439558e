"""Where a controller writes down what becomes of its job: the index, or a file where the index lies on another machine.

Imported when it is first needed: sqlite takes its time.
"""

from __future__ import annotations

import json
import shutil
import time
import traceback
from pathlib import Path
from typing import Any, Protocol

from herringbone.controller.config import Order
from herringbone.jobs.index import FAILED, STOPPING, TRAINING, JobIndex
from herringbone_contract.failure import Failure


class Record(Protocol):
    """One job's columns of the index, wherever they are written."""

    def update(self, **columns: Any) -> None:
        """Change some; nothing happens to a job that is over."""

    def wished_grace(self) -> float | None:
        """Return the grace, in seconds, that who asked for a stop wished; None for the job's own."""


class IndexRecord:
    """The job's row in the index of this machine."""

    def __init__(self, index: Path, job: str) -> None:
        self._index = JobIndex(index)
        self._job = job

    def update(self, **columns: Any) -> None:
        self._index.update(self._job, unless_done=True, **columns)

    def wished_grace(self) -> float | None:
        return self._index.get(self._job).stop_grace


class FileRecord:
    """A file of JSON that is read elsewhere and replaced as a whole, and a wish that lies beside it.

    sqlite needs locks that file systems between machines often do not keep.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def begin(self, **columns: Any) -> None:
        """Write these alone: what an earlier controller of the job wrote is over."""
        partial = self._path.with_suffix(".partial")
        partial.write_text(json.dumps(columns))
        partial.replace(self._path)

    def update(self, **columns: Any) -> None:
        self.begin(**{**read_report(self._path), **columns})

    def wished_grace(self) -> float | None:
        wish = stop_wish(self._path)
        return None if wish is None else wish["grace"]


def read_report(path: Path) -> dict[str, Any]:
    """Return what a controller has written so far; nothing while there is none."""
    try:
        columns: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    return columns


def stop_wish(report: Path) -> dict[str, Any] | None:
    """Return what was left beside a report by who asked for a stop: `{"grace": seconds or None}`; None for nobody."""
    try:
        wish: dict[str, Any] = json.loads(wish_path(report).read_text())
    except FileNotFoundError:
        return None
    return wish


def wish_path(report: Path) -> Path:
    """Return where a wish to stop lies.

    >>> wish_path(Path("job/report.json"))
    PosixPath('job/stop.json')
    """
    return report.with_name("stop.json")


def record_of(order: Order) -> Record:
    """Return where this job's controller writes."""
    if order["report"] is not None:
        return FileRecord(Path(order["report"]))
    assert order["index"] is not None
    return IndexRecord(Path(order["index"]), order["job"])


def training(order: Order, *, first: bool) -> None:
    """The hosts have been started, the `first` time under this controller or once more."""
    started = {"started": time.time()} if first else {}
    record_of(order).update(secondary_status=TRAINING, **started)


def stopping(order: Order) -> float | None:
    """Somebody asked for a stop; return the grace that he wished, in seconds, None for the job's own."""
    record = record_of(order)
    record.update(status=STOPPING, secondary_status=STOPPING)
    return record.wished_grace()


def broken(order: Order, error: BaseException) -> None:
    """The controller itself could not go on."""
    traceback.print_exception(error)
    shutil.rmtree(order["run_folder"], ignore_errors=True)
    failure = Failure(exception=type(error).__name__, message=f"the job's controller could not go on: {error}")
    record_of(order).update(status=FAILED, secondary_status=FAILED, ended=time.time(), failure=failure.to_json())
