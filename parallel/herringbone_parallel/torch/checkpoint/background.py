"""Run a save in a thread, and keep its error for the script."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Background:
    """A save in a thread of its own, and the error that ended it."""

    def __init__(self, save: Callable[[], None]) -> None:
        self._save = save
        self._failure: BaseException | None = None
        # Whether the script knows of the failure.
        self._raised = False
        # Not a daemon: a script that ends waits for its last checkpoint.
        self._thread = threading.Thread(target=self._run, name="checkpoint")
        self._thread.start()

    def finish(self, timeout: float | None = None, *, again: bool = True) -> bool:
        """Wait, and return whether the save is over. Raises its error; without `again` only for the first time."""
        self._thread.join(timeout)
        if self._thread.is_alive():
            return False
        if self._failure is not None and (again or not self._raised):
            self._raised = True
            raise self._failure
        return True

    @property
    def is_done(self) -> bool:
        """True when the save is over, and has no error that the script has still to see."""
        return not self._thread.is_alive() and self._failure is None

    def _run(self) -> None:
        try:
            self._save()
        except BaseException as error:  # noqa: BLE001  raised by `finish`
            self._failure = error
        # It refers to the copies.
        del self._save
