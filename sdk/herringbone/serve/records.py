"""The service's own state: one small file per job, with what the index of jobs cannot say.

    HOME/service/lock               held while a service runs: one per home
    HOME/service/jobs/NAME.json     owner, request (secrets masked), tags, and whether the submission is over
    HOME/service/tunings/NAME.json  the same of a tuning job

A file appears whole or not at all. Whoever kills the service loses nothing: jobs run under their own controllers, and
a job whose submission was cut is found by its file.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from herringbone.records.home import Home
from herringbone.serve.links import Held
from herringbone_contract.errors import InputError
from herringbone_contract.files import try_locked, write_whole


class ServiceRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One training job or tuning job of the service.

    `call` is the SHA-256 of the call that created the job: the client's invocation id and the body. Its repetition gets
    the same answer. `submitted` is false until a controller has the job. `modified` is the last change by a call.
    `tuning` is the tuning job that a training job is a trial of. `problem` says why a tuning job cannot go on. `held`
    are the places that nobody else may change until the job is over.
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
