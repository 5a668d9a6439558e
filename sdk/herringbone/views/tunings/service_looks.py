"""Searches that SageMaker has, as views show them: asked for in threads, at most every half minute."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from herringbone.tuner.look import TuningLook
from herringbone.tuner.service.location import read_record
from herringbone.tuner.tuning import find_tuning
from herringbone_contract.errors import HerringboneError

if TYPE_CHECKING:
    from herringbone.tuner.tuning import Tuning

BACKEND = "sagemaker"
# One look takes two requests, and a trial takes minutes.
_PAUSE_SECONDS = 30.0
# Whoever lists searches waits so long for the first answers.
_PATIENCE_SECONDS = 3.0


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
