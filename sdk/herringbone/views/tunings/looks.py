"""Searches as views show them: read from their folders, and read again only when a file has changed."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

from herringbone.records.home import Home
from herringbone.system.disk import stamp_of
from herringbone.tuner.look import TuningLook
from herringbone.tuner.own import OwnTuning
from herringbone.tuner.store import TrialRecord, TuningStore
from herringbone.views.tunings.service_looks import BACKEND, ServiceLooks
from herringbone_contract.errors import HerringboneError, JobNotFoundError

_FILES = ("tuning.json", "trials.jsonl", "state.json", "stop")
# A searcher that is starting does not hold its lock yet.
_START_SECONDS = 10.0


class Tunings:
    """The searches of a home.

    >>> [look.status for look in Tunings(Home(Path("/nowhere"))).all()]
    []

    Several threads may look.
    """

    def __init__(self, home: Home) -> None:
        self._home, self._folder = home, home.tunings
        self._of_service = ServiceLooks(home.tunings)
        # Held during a look: the member below changes only then.
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[object, TuningLook]] = {}

    def all(self) -> list[TuningLook]:
        """Return every search, the newest first; one whose folder cannot be read is left out."""
        with self._lock:
            names = self._names()
            self._seen = {name: seen for name, seen in self._seen.items() if name in names}
            looks = [self._alive(look) for name in names if (look := self._read(name)) is not None]
        return sorted(looks, key=lambda look: (-look.created, look.name))

    def get(self, name: str) -> TuningLook:
        """Return one search. Raises `JobNotFoundError`."""
        with self._lock:
            look = self._read(name) if name in self._names() else None
            look = None if look is None else self._alive(look)
        if look is None:
            raise JobNotFoundError(f"no tuning job {name!r} in {self._folder}; `herringbone tune ls` shows them")
        return look

    def trials_of_jobs(self) -> dict[str, tuple[TuningLook, TrialRecord]]:
        """Return the trials by the names of their jobs."""
        return {record.job: (look, record) for look in self.all() for record in look.trials}

    def _names(self) -> set[str]:
        try:
            return {path.name for path in self._folder.iterdir() if not path.name.startswith(".")}
        except OSError:
            return set()

    def _alive(self, look: TuningLook) -> TuningLook:
        """Add the reason why a search stands still: its process may be gone, which changes no file."""
        tuning = OwnTuning(TuningStore(self._folder / look.name), self._home)
        if look.backend == BACKEND or look.done or time.time() - look.created < _START_SECONDS or tuning.is_searched:
            return look
        why = f"no process searches any more; `herringbone tune attach {look.name}` goes on"
        return replace(look, reason=why)

    def _read(self, name: str) -> TuningLook | None:
        if (of_service := self._of_service.look(name)) is not None:
            return of_service
        store = TuningStore(self._folder / name)
        stamp = [stamp_of(store.path / file) for file in _FILES]
        seen = self._seen.get(name)
        if seen is not None and seen[0] == stamp:
            return seen[1]
        try:
            look = OwnTuning(store, self._home).look()
        # Of another release, or its folder is being removed.
        except HerringboneError:
            return None
        self._seen[name] = (stamp, look)
        return look
