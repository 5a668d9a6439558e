"""The service's own state: one small file per job, with what the index of jobs cannot say.

    HOME/service/lock               held while a service runs: one per home
    HOME/service/jobs/NAME.json     owner, request (secrets masked), tags, and whether the submission is over
    HOME/service/tunings/NAME.json  the same of a tuning job

A file appears whole or not at all. Whoever kills the service loses nothing: jobs run under their own controllers, and
a job whose submission was cut is found by its file.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from herringbone.records.home import Home
from herringbone.serve.limits import Rate
from herringbone.serve.links import Held
from herringbone_contract.errors import InputError
from herringbone_contract.files import try_locked, write_whole

# The previous file stays next to it, so the audit takes twice this at most.
_MAX_BYTES = 64 << 20
_UNSIGNED_PER_SECOND, _UNSIGNED_AT_ONCE = 1.0, 100.0


class ServiceRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One training job or tuning job of the service.

    `call` is the SHA-256 of the call that created the job: the client's invocation id and the body. Its repetition gets
    the same answer. `submitted` is false until a controller has the job. `modified` is the last change by a call.
    `tuning` is the tuning job that a training job is a trial of. `problem` says why a tuning job cannot go on. `held`
    are the places that nobody else may change until the job is over. `adopted`: the service has not created it.
    """

    name: str
    owner: str
    region: str
    created: float
    request: dict[str, Any]
    tags: dict[str, str] = {}
    call: str = ""
    submitted: bool = False
    modified: float = 0.0
    tuning: str = ""
    problem: str = ""
    held: Held = Held()
    adopted: bool = False


class RecordFolder:
    """The files of one kind of job, and a copy in memory; several threads may use it.

    >>> RecordFolder(Path("/srv/home/service/jobs")).get("digits-1").owner                   # doctest: +SKIP
    'ada'

    Whoever makes one holds the home. Raises `InputError` for a file that is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(mode=0o700, exist_ok=True)
        self._lock = threading.Lock()
        self._records = {record.name: record for record in self._load()}

    def get(self, name: str) -> ServiceRecord | None:
        with self._lock:
            return self._records.get(name)

    def all(self) -> list[ServiceRecord]:
        with self._lock:
            return list(self._records.values())

    def add(self, record: ServiceRecord) -> bool:
        """Claim a name; return False when it is taken."""
        with self._lock:
            if record.name in self._records:
                return False
            self._write(record)
            self._records[record.name] = record
            return True

    def change(self, name: str, **members: Any) -> ServiceRecord | None:
        """Change members of a record; None when it is gone."""
        with self._lock:
            record = self._records.get(name)
            if record is None:
                return None
            record = msgspec.structs.replace(record, **members)
            self._write(record)
            self._records[name] = record
            return record

    def remove(self, name: str) -> None:
        with self._lock:
            self._records.pop(name, None)
            self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        # SageMaker's pattern of names has no slash and no dot; it was checked before.
        return self._folder / f"{name}.json"

    def _write(self, record: ServiceRecord) -> None:
        write_whole(self._path(record.name), msgspec.json.encode(record), synced=True)

    def _load(self) -> Iterator[ServiceRecord]:
        for path in self._folder.iterdir():
            if path.name.startswith("."):
                # Of a service that was killed while it wrote.
                path.unlink(missing_ok=True)
                continue
            try:
                yield msgspec.json.decode(path.read_bytes(), type=ServiceRecord)
            except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise InputError(f"{path} is damaged: {error}; move it away, and its job is no longer shown") from None


class Records(RecordFolder):
    """The files of training jobs; `tunings` are those of tuning jobs. They hold the home for this service.

    >>> Records(find_home()).tunings.get("digits").owner                   # doctest: +SKIP
    'ada'

    Raises `InputError` while another service holds the home.
    """

    def __init__(self, home: Home) -> None:
        folder = home.path / "service"
        home.make()
        folder.mkdir(mode=0o700, exist_ok=True)
        # Held until this process ends, however it ends.
        lock = try_locked(folder / "lock")
        if lock is None:
            raise InputError(
                f"another `herringbone serve` runs with the jobs of {home.path}; stop it, or set HERRINGBONE_HOME"
            )
        self._lock_file = lock
        super().__init__(folder / "jobs")
        self.tunings = RecordFolder(folder / "tunings")

    def close(self) -> None:
        """Let another service have the home."""
        self._lock_file.close()


class Audit:
    """Appends to the file at `path`, which only this user can read.

    >>> Audit(Path("audit.log")).add(key="ada", operation="CreateTrainingJob", status=200)     # doctest: +SKIP
    """

    def __init__(self, path: Path, *, max_bytes: int = _MAX_BYTES, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._clock = clock
        self._unsigned = Rate(per_second=_UNSIGNED_PER_SECOND, burst=_UNSIGNED_AT_ONCE)
        # Calls without a line, since the last line. Guarded by the lock, as the file is.
        self._unwritten = 0

    def add(self, **members: str | float | int | None) -> None:
        """Write one line. Raises `OSError`: a call that cannot be written down is not answered.

        A call without `key` was not signed rightly. If there are too many, they have no lines: the next line says by
        `unwritten` how many there were.
        """
        known = {name: value for name, value in members.items() if value not in (None, "")}
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        with self._lock:
            if not known.get("key") and not self._unsigned.take(self._clock()):
                self._unwritten += 1
                return
            if self._unwritten:
                known["unwritten"] = self._unwritten
            line = msgspec.json.encode({"time": stamp, **known}) + b"\n"
            # One write with O_APPEND: a line is there whole or not at all, also where the service is killed.
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                os.write(file, line)
                self._unwritten = 0
                size = os.fstat(file).st_size
            finally:
                os.close(file)
            if size > self._max_bytes:
                self._path.replace(self._path.with_suffix(".1.log"))
