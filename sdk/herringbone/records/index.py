"""The index of jobs: one sqlite row per job, shared by every process of this user.

The client that submits a job writes its row first, then the job's controller does; any process may read. Each call
opens the file, because forks and threads must not share a connection of sqlite's.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from herringbone_contract.errors import (
    HerringboneError,
    IndexBusyError,
    JobNameError,
    JobNotFoundError,
    UsageError,
    near_words,
)

if TYPE_CHECKING:
    from herringbone_contract.failure import Failure

IN_PROGRESS, COMPLETED, FAILED, STOPPING, STOPPED = "InProgress", "Completed", "Failed", "Stopping", "Stopped"
# Secondary states that are not a status as well.
STARTING, TRAINING, UPLOADING, MAX_RUNTIME_EXCEEDED = "Starting", "Training", "Uploading", "MaxRuntimeExceeded"
PENDING, DOWNLOADING, RESTARTING = "Pending", "Downloading", "Restarting"
INTERRUPTED = "Interrupted"
# The option whose limit has stopped a job -> its secondary status. SageMaker has the first one.
LIMITS = {
    "max_run": MAX_RUNTIME_EXCEEDED,
    "max_cost": "MaxCostExceeded",
    "idle_timeout": "IdleTimeoutExceeded",
}
# A fault that a watcher saw, and whose policy is to stop.
POLICY_STOPPED = "StoppedByPolicy"
TERMINAL = (COMPLETED, FAILED, STOPPED)

_VERSION = 6
# The format of the column `plan`; a row without it is of a release that did not note it.
PLAN_VERSION = 1
_TABLE = """
CREATE TABLE jobs (
    name TEXT PRIMARY KEY, backend TEXT NOT NULL, plan TEXT NOT NULL,
    status TEXT NOT NULL, secondary_status TEXT NOT NULL,
    created REAL NOT NULL, started REAL, ended REAL,
    client TEXT, controller TEXT, run_folder TEXT, stop_grace REAL,
    failure TEXT, model TEXT
)
"""
# What formats since the first have added, so that a controller can end its job after an upgrade of the index. A table
# gets those that it lacks, whatever its format: tables of format 4 exist with and without `hosts`.
_ADDED = {
    "service": "TEXT",
    "description": "TEXT",
    "place": "TEXT",
    "plan_version": "INTEGER",
    "hosts": "INTEGER",
    "facts": "TEXT",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """One row. Times are seconds since 1970.

    `status` and `secondary_status` are SageMaker's words. `plan`, `failure`, `service` and `description` are JSON.
    `client` is the identity of the process that submits the job, None once the submission is over. `controller` is the
    identity of the process that runs the job's life. `run_folder` is removed at the end. `model` is the path or address
    of the packed model. `service` says where a job outside this machine runs, and `description` is the last answer
    from there, secrets masked. `place` says where `client` and `controller` run, as `processes.place` writes it; None
    in rows of earlier releases. `plan_version` is the format of `plan`, `hosts` its number of hosts. `facts` is JSON:
    what `describe` shows and no other column has, such as the image that ran.
    """

    name: str
    backend: str
    plan: str
    status: str = IN_PROGRESS
    secondary_status: str = STARTING
    created: float
    started: float | None = None
    ended: float | None = None
    client: str | None = None
    controller: str | None = None
    run_folder: str | None = None
    stop_grace: float | None = None
    failure: str | None = None
    model: str | None = None
    service: str | None = None
    description: str | None = None
    place: str | None = None
    plan_version: int | None = PLAN_VERSION
    hosts: int | None = None
    facts: str | None = None

    @property
    def done(self) -> bool:
        return self.status in TERMINAL

    @property
    def plan_dict(self) -> dict[str, Any]:
        plan: dict[str, Any] = json.loads(self.plan)
        return plan

    @property
    def num_hosts(self) -> int:
        return self.hosts if self.hosts is not None else len(self.plan_dict.get("hosts", ()))


def stored_facts(record: JobRecord) -> dict[str, Any]:
    """Return the facts of the row.

    >>> stored_facts(JobRecord(name="a", backend="local", plan="{}", created=0.0, facts='{"Image": "mine:1"}'))
    {'Image': 'mine:1'}
    """
    # A damaged row is described without them.
    with suppress(ValueError, RecursionError):
        if isinstance(facts := json.loads(record.facts or "{}"), dict):
            return facts
    return {}


_COLUMNS = tuple(field.name for field in fields(JobRecord))
# A plan has some kilobytes. Rows of earlier releases tell the number of hosts only by it.
_SHORT = {
    "plan": "CASE WHEN hosts IS NULL THEN plan ELSE '{}' END",
    **dict.fromkeys(("failure", "description", "facts"), "NULL"),
}
_SUMMARY_COLUMNS = tuple(_SHORT.get(column, column) for column in _COLUMNS)


class JobIndex:
    """The rows of all jobs in one file.

    >>> JobIndex(Path("index.sqlite")).get("digits-1").status    # doctest: +SKIP
    'Completed'

    Raises `IndexBusyError` when the file is locked for `busy_seconds` or cannot be written now, `HerringboneError` when
    it is damaged.
    """

    def __init__(self, path: Path, *, busy_seconds: float = 10.0) -> None:
        self._path = self.path = path
        self._busy_seconds = busy_seconds

    def add(self, record: JobRecord) -> None:
        """Claim the name. Raises `JobNameError` when it is taken, also by a process that claims it at this moment."""
        # Columns by name: a migrated table need not have the order of a new one.
        values = [getattr(record, column) for column in _COLUMNS]
        marks = ", ".join("?" * len(_COLUMNS))
        with self._open() as database:
            try:
                database.execute(f"INSERT INTO jobs ({', '.join(_COLUMNS)}) VALUES ({marks})", values)  # noqa: S608 - our own column names
            # The primary key decides between two processes that claim one name; a read before the insert could not.
            except sqlite3.IntegrityError:
                raise _taken(record.name) from None

    def check_free(self, name: str) -> None:
        """Raise `JobNameError` for a name that a job has; only `add` makes sure that none gets it."""
        if name in self.names():
            raise _taken(name)

    def update(self, name: str, *, unless_done: bool = False, **columns: Any) -> bool:
        """Change a row; with `unless_done`, only while the job is not over. Return whether a row was changed."""
        assert columns
        assert set(columns) <= set(_COLUMNS), columns
        changes = ", ".join(f"{column} = ?" for column in columns)
        # In the statement itself: a controller may end the job between a read and a write of another process.
        condition = f" AND status NOT IN {TERMINAL}" if unless_done else ""
        with self._open() as database:
            cursor = database.execute(f"UPDATE jobs SET {changes} WHERE name = ?{condition}", [*columns.values(), name])  # noqa: S608
            # 0 when the job is over, or was removed; the caller decides whether that is an error.
            return cursor.rowcount == 1

    def fail(self, name: str, failure: Failure) -> None:
        """Record that a job failed at this moment, unless it was over before."""
        self.update(
            name,
            unless_done=True,
            status=FAILED,
            secondary_status=FAILED,
            ended=time.time(),
            failure=failure.to_json(),
        )

    def remove(self, name: str) -> None:
        with self._open() as database:
            database.execute("DELETE FROM jobs WHERE name = ?", [name])

    @contextmanager
    def holding(self, name: str, *, remove: bool) -> Iterator[JobRecord | None]:
        """Give the row to the body, None without one; with `remove`, the row goes unless the body raises an error.

        >>> with index.holding("digits-1", remove=True) as record: folder.rename(trash)        # doctest: +SKIP

        No other process writes to the index meanwhile: nobody ends, claims or removes a job. So the body is short.
        """
        with self._open() as database:
            database.execute("BEGIN IMMEDIATE")
            yield next(iter(_records(database, "WHERE name = ?", name)), None)
            if remove:
                database.execute("DELETE FROM jobs WHERE name = ?", [name])

    def get(self, name: str) -> JobRecord:
        """Return a job's row. Raises `JobNotFoundError` with the nearest names."""
        rows = self._select("WHERE name = ?", name)
        if rows:
            return rows[0]
        near = _near(name[:100], [record.name for record in self.all()])
        hint = f"did you mean {' or '.join(near)}?" if near else "`herringbone ls` shows the jobs"
        raise JobNotFoundError(f"no job {name!r} in {self._path.parent}; {hint}")

    def all(self) -> list[JobRecord]:
        """Return every job, the newest first."""
        return self._select("ORDER BY created DESC, name")

    def names(self) -> list[str]:
        """Return the name of every job, the newest first."""
        if self.is_empty():
            return []
        with self._open() as database:
            return [name for (name,) in database.execute("SELECT name FROM jobs ORDER BY created DESC, name")]

    def failures(self) -> dict[str, str]:
        """Return the failure, as JSON, of each job that has one."""
        if self.is_empty():
            return {}
        with self._open() as database:
            return dict(database.execute("SELECT name, failure FROM jobs WHERE failure IS NOT NULL").fetchall())

    def running(self) -> list[JobRecord]:
        """Return the jobs that are not over, the newest first."""
        return self._select(f"WHERE status NOT IN {TERMINAL} ORDER BY created DESC, name")

    def summaries(self) -> list[JobRecord]:
        """Return every job, the newest first, for a list: without plans, failures and descriptions."""
        return self._select("ORDER BY created DESC, name", columns=_SUMMARY_COLUMNS)

    def recent(self, count: int) -> list[JobRecord]:
        """Return the jobs that are not over, and the newest `count` of the others, as `summaries` does."""
        over = f"status IN {TERMINAL}"
        newest = f"SELECT name FROM jobs WHERE {over} ORDER BY created DESC, name LIMIT ?"  # noqa: S608 - our own words
        rest = f"WHERE NOT {over} OR name IN ({newest}) ORDER BY created DESC, name"
        return self._select(rest, count, columns=_SUMMARY_COLUMNS)

    def _select(self, rest: str, *values: Any, columns: Sequence[str] | None = None) -> list[JobRecord]:
        # sqlite would create the file, and a mere look must leave nothing behind.
        if self.is_empty():
            return []
        with self._open() as database:
            return _records(database, rest, *values, columns=columns)

    def is_empty(self) -> bool:
        """Report whether no job has run yet. Raises `UsageError` for a home that can be none, such as a file."""
        try:
            return not self._path.stat().st_size
        except FileNotFoundError:
            return True
        except OSError as error:
            raise UsageError(
                f"the jobs' folder {str(self._path.parent)[:200]} cannot be used: {error.strerror}; set "
                "HERRINGBONE_HOME to a folder"
            ) from None

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            # `with database` commits or rolls back but does not close; `closing` does.
            # `timeout` is the time that sqlite waits for a lock of another process.
            with closing(sqlite3.connect(self._path, timeout=self._busy_seconds)) as database, database:
                # NORMAL syncs the disk less often than FULL, and each submission waits for every sync. After a power
                # failure the last change may be lost, but none is there in part: the journal, which sqlite syncs
                # before it touches the database, undoes half a change.
                database.execute("PRAGMA synchronous = NORMAL")
                self._make_table(database)
                yield database
        except sqlite3.DatabaseError as error:
            # sqlite's own word for what may pass: locks, full and read-only disks, missing permissions.
            kind = IndexBusyError if isinstance(error, sqlite3.OperationalError) else HerringboneError
            raise kind(f"the index of jobs, {self._path}: {error}; {_remedy(error)}") from error

    def _make_table(self, database: sqlite3.Connection) -> None:
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version == _VERSION:
            return
        if version > _VERSION:
            if _columns(database) >= set(_COLUMNS):
                return
            raise HerringboneError(
                f"the index of jobs, {self._path}, was made by a newer Herringbone (format {version}, "
                f"this one reads {_VERSION}); update Herringbone"
            )
        # IMMEDIATE takes the write lock now. The version is read again under it, because another process may have
        # created or migrated the table since the first read.
        database.execute("BEGIN IMMEDIATE")
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version == 0:
            database.execute(_TABLE)
        present = _columns(database)
        if "keeper" in present:  # Formats 1 and 2.
            database.execute("ALTER TABLE jobs RENAME COLUMN keeper TO controller")
        for column, kind in _ADDED.items():
            if column not in present:
                database.execute(f"ALTER TABLE jobs ADD COLUMN {column} {kind}")
        database.execute(f"PRAGMA user_version = {_VERSION}")
        database.commit()


def _records(
    database: sqlite3.Connection, rest: str, *values: Any, columns: Sequence[str] | None = None
) -> list[JobRecord]:
    rows = database.execute(f"SELECT {', '.join(columns or _COLUMNS)} FROM jobs {rest}", values)  # noqa: S608
    return [JobRecord(**dict(zip(_COLUMNS, row, strict=True))) for row in rows]


def _columns(database: sqlite3.Connection) -> set[str]:
    return {row[1] for row in database.execute("PRAGMA table_info(jobs)")}


def _near(name: str, names: Sequence[str]) -> list[str]:
    """Return up to three names like `name`, or that begin like it: made names end with the time, typed ones seldom."""
    if near := near_words(name, names, number=3):
        return near
    heads = near_words(name, {other[: len(name)] for other in names})
    return [other for other in names if heads and other.startswith(heads[0])][:3]


def _taken(name: str) -> JobNameError:
    return JobNameError(f"job name {name!r} is taken; choose another, or leave it out to get a generated one")


def _remedy(error: sqlite3.DatabaseError) -> str:
    text = str(error)
    if "locked" in text or "busy" in text:
        return "another process holds it for too long; try again"
    if isinstance(error, sqlite3.OperationalError):
        return "check its permissions and the free space of its disk, or set HERRINGBONE_HOME to another folder"
    return "it is damaged: move it away and a new one is created; the jobs' own folders stay as they are"
