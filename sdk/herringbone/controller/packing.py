"""Watch the packing of results: end it when the user asks for that, and write into the log how far it is."""

from __future__ import annotations

import time
from collections.abc import Callable

_CHECK_SECONDS = 0.1
_REPORT_SECONDS = 30.0


class PackingStoppedError(Exception):
    """The user has ended the packing: no archive was made, and the hosts' folders stay as they are."""


class PackingWatch:
    """The `step` of `artifacts.pack`: `is_ended` is asked ten times a second, `say` gets a line every 30 seconds.

    >>> watch = PackingWatch(is_ended=lambda: True, say=print, clock=lambda: 7.0)
    >>> watch(4096, 1 << 30)
    Traceback (most recent call last):
    herringbone.controller.packing.PackingStoppedError

    `clock` returns seconds.
    """

    def __init__(
        self, *, is_ended: Callable[[], bool], say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._is_ended, self._say, self._clock = is_ended, say, clock
        self._packed = 0
        self._checks_at = self._reports_at = clock()
        self._reports_at += _REPORT_SECONDS

    def __call__(self, packed: int, total: int) -> None:
        """Note that `packed` more bytes of `total` are packed. Raises `PackingStoppedError`."""
        self._packed += packed
        now = self._clock()
        if now >= self._checks_at:
            self._checks_at = now + _CHECK_SECONDS
            if self._is_ended():
                raise PackingStoppedError
        # Without a total the files are still being listed.
        if now >= self._reports_at and total:
            self._reports_at = now + _REPORT_SECONDS
            self._say(f"{self._packed / 2**30:.1f} of {total / 2**30:.1f} GiB are packed")


def not_packed(job: str, folders: str) -> str:
    """Return the message for a job whose packing was ended; `folders` are those of its model.

    >>> not_packed("digits-1", "hosts/algo-1/ml/model").partition(":")[0]
    'the model was not packed, because the job was stopped again'
    """
    return (
        f"the model was not packed, because the job was stopped again: it is in {folders}, and "
        f"`herringbone repack {job}` packs it"
    )
