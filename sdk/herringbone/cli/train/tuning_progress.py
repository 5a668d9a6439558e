"""Shows a search while its caller waits: a line for each trial that is over, and on a terminal a line of its state."""

from __future__ import annotations

import os
import sys
import threading
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from herringbone.views.tunings.shown import headline
from herringbone_contract.errors import HerringboneError
from herringbone_contract.masking import printable

if TYPE_CHECKING:
    from typing_extensions import Self

    from herringbone.tuner.tuning import Tuning

_SECONDS = 1.0
_LEAST_COLUMNS, _USUAL_COLUMNS = 20, 80
# Back to the first column, and clear the row.
_CLEAR = "\r\x1b[2K"


class TuningProgress:
    """The lines of one search: `with TuningProgress(tuning) as progress: tuning.wait(progress.say)`.

    The state has a row of its own, the last one, which only a terminal can replace; a pipe gets the lines alone.
    With `quiet` nothing is shown.
    """

    def __init__(self, tuning: Tuning, stream: TextIO | None = None, *, quiet: bool = False) -> None:
        self._tuning, self._quiet = tuning, quiet
        self._stream = sys.stdout if stream is None else stream
        self._redraws = not quiet and self._stream.isatty() and os.environ.get("TERM") != "dumb"
        # Held while something is written: the thread below writes as well.
        self._lock = threading.Lock()
        self._ends = threading.Event()
        self._state = ""
        # A daemon: a service that never answers must not keep the program from ending.
        self._thread = threading.Thread(target=self._follow, name="tuning progress", daemon=True)

    def __enter__(self) -> Self:
        if self._redraws:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.set()
        with self._lock:
            self._write("", state="")

    def say(self, line: str) -> None:
        """Write a line above the state."""
        if self._quiet:
            return
        with self._lock:
            self._write(f"{printable(line)}\n", state=self._state)

    def _follow(self) -> None:
        definition = None
        while not self._ends.is_set():
            try:
                definition = definition or self._tuning.definition()
                text = headline(definition, self._tuning.trials())
            except HerringboneError as error:
                text = str(error).partition("\n")[0]
            with self._lock:
                if not self._ends.is_set():
                    self._write("", state=printable(text))
            self._ends.wait(_SECONDS)

    def _write(self, text: str, *, state: str) -> None:
        if not self._redraws:
            self._stream.write(text)
        elif text or state != self._state:
            from herringbone.show.cells import fitted

            # One column stays free: a cursor behind the last one would wrap.
            columns = os.get_terminal_size(self._stream.fileno()).columns or _USUAL_COLUMNS
            width = max(_LEAST_COLUMNS, columns - 1)
            self._stream.write(f"{_CLEAR if self._state else ''}{text}{fitted(state, width)}")
            self._state = state
        self._stream.flush()
