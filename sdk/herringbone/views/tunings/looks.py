"""Searches as views show them: read from their folders, and read again only when a file has changed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from herringbone.records.home import Home
from herringbone.system.disk import stamp_of
from herringbone.tuner.look import TuningLook
from herringbone.tuner.own import OwnTuning
from herringbone.tuner.service.tuning import read_record
from herringbone.tuner.store import TrialRecord, TuningStore
from herringbone.tuner.tuning import Tuning, find_tuning
from herringbone_contract.errors import HerringboneError, JobNotFoundError

_FILES = ("tuning.json", "trials.jsonl", "state.json", "stop")
BACKEND = "sagemaker"
# One look takes two requests, and a trial takes minutes.
_PAUSE_SECONDS = 30.0
# Whoever lists searches waits so long for the first answers.
_PATIENCE_SECONDS = 3.0


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
        if look.backend == BACKEND:
            return look
        return OwnTuning(TuningStore(self._folder / look.name), self._home).alive(look)

    def _read(self, name: str) -> TuningLook | None:
        if (of_service := self._of_service.look(name)) is not None:
            return of_service
        store = TuningStore(self._folder / name)
        stamp = [stamp_of(store.path / file) for file in _FILES]
        seen = self._seen.get(name)
        if seen is not None and seen[0] == stamp:
            return seen[1]
        try:
            look = OwnTuning(store, self._home).read()
        # Of another release, or its folder is being removed.
        except HerringboneError:
            return None
        self._seen[name] = (stamp, look)
        return look


@dataclass
class _Asked:
    look: TuningLook
    # The moment of the last question, and the thread that waits for its answer.
    at: float
    thread: threading.Thread | None = None


class ServiceLooks:
    """The searches of a folder that SageMaker has: `ServiceLooks(home.tunings).look("digits")`.

    A service that is silent, or refuses, leaves the last answer, with the reason.
    """

    def __init__(
        self,
        folder: Path,
        *,
        find: Callable[[str], Tuning] = find_tuning,
        clock: Callable[[], float] = time.monotonic,
        patience: float = _PATIENCE_SECONDS,
    ) -> None:
        # Of all first answers together, so that searches that nobody answers for do not add up.
        self._patience = patience
        self._folder, self._find, self._clock = folder, find, clock
        # Only the thread that looks adds members; the threads that ask replace looks.
        self._asked: dict[str, _Asked] = {}

    def look(self, name: str) -> TuningLook | None:
        """Return the newest answer; None for a search that is not SageMaker's."""
        asked = self._asked.get(name)
        if asked is None:
            record = read_record(self._folder / name)
            if record is None:
                return None
            look = TuningLook(
                definition=record.definition,
                trials=(),
                status="InProgress",
                backend=BACKEND,
                created=record.created,
                reason="SageMaker has not answered yet",
            )
            asked = self._asked[name] = _Asked(look, at=-_PAUSE_SECONDS)
            self._ask(name, asked)
            assert asked.thread is not None
            begin = time.monotonic()
            asked.thread.join(self._patience)
            self._patience = max(0.0, self._patience - (time.monotonic() - begin))
        elif not asked.look.done and self._clock() - asked.at >= _PAUSE_SECONDS:
            self._ask(name, asked)
        return asked.look

    def _ask(self, name: str, asked: _Asked) -> None:
        if asked.thread is not None and asked.thread.is_alive():
            return
        asked.at = self._clock()

        def answer() -> None:
            try:
                # The definition stays: it has the values as the user wrote them.
                asked.look = replace(self._find(name).look(), definition=asked.look.definition)
            except HerringboneError as error:
                asked.look = replace(asked.look, reason=str(error).partition("\n")[0])

        # A daemon: a service that never answers must not keep the program from ending.
        asked.thread = threading.Thread(target=answer, name=f"tuning job {name}", daemon=True)
        asked.thread.start()
