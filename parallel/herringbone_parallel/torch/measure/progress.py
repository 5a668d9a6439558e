"""Watch a measurement from a thread: print where the script is, and end the process when it takes too long."""

from __future__ import annotations

import linecache
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

_SECONDS = 2.0


class Watch(threading.Thread):
    """Prints `measure: ...` on standard error every two seconds, and calls `give_up` with the place after `timeout`."""

    def __init__(
        self, describe: Callable[[], str], folder: Path, timeout: float, give_up: Callable[[str], None]
    ) -> None:
        super().__init__(name="measure-progress", daemon=True)
        self._describe = describe
        self._folder = folder
        self._timeout = timeout
        self._give_up = give_up
        self._main = threading.main_thread().ident
        self._over = threading.Event()

    def stop(self) -> None:
        """Print nothing more."""
        self._over.set()

    def run(self) -> None:
        """Watch until `stop`."""
        end = time.monotonic() + self._timeout
        while not self._over.wait(min(_SECONDS, max(0.0, end - time.monotonic()))):
            place = self._describe()
            if time.monotonic() >= end:
                self._give_up(f"{place}; {self._line()}")
                return
            print(f"measure: {place}", file=sys.stderr, flush=True)

    def _line(self) -> str:
        frame = sys._current_frames().get(self._main or 0)
        return line_of(frame, self._folder)


def line_of(frame: FrameType | None, folder: Path) -> str:
    """Describe the innermost line of a stack that is in the script's folder."""
    start = f"{folder}{os.sep}"
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(start):
            text = linecache.getline(file, frame.f_lineno).strip()
            return f"it stood at line {frame.f_lineno} of {file.removeprefix(start)}: {text[:120]}"
        frame = frame.f_back
    return "it stood outside of the script's folder"
