"""Send the records of steps from a rank: a record waits for room, where other events are dropped."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from herringbone_contract.constants import RankVariable
from herringbone_contract.events import emit
from herringbone_contract.rehearsal.records import KIND, Step, pieces

# Lines of a process in a second: the observer takes 1,000 of a rank, and counts other seconds.
_MAX_LINES = 400
# Bytes of a host in a second: the observer empties the FIFO of 1 MiB once a second, and others write there, too.
_MAX_BYTES = 600_000
# How long a record waits for room. A link that is cut holds up the log, and thereby the ranks.
_PATIENCE_S = 60.0


def place() -> tuple[int | None, int]:
    """Return this process's rank and the number of ranks in the job."""
    size = os.environ.get(RankVariable.WORLD_SIZE, "1")
    return emit.rank(), int(size) if size.isdigit() else 1


class Sender:
    """Sends the steps of one process in their order.

    Sender().send(Step(1), rank=0)
    """

    def __init__(
        self,
        emit: Callable[..., bool] = emit.emit,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._emit, self._clock, self._sleep = emit, clock, sleep
        self._process = f"{os.getpid():x}-{time.time_ns():x}"
        local_ranks = os.environ.get(RankVariable.LOCAL_WORLD_SIZE, "1")
        self._max_bytes = _MAX_BYTES // max(1, int(local_ranks) if local_ranks.isdigit() else 1)
        self._second, self._lines, self._bytes = -1.0, 0, 0
        self._patience = _PATIENCE_S

    def send(self, step: Step, rank: int | None) -> None:
        """Send a step; a record that finds no room is lost, and the reader misses its number."""
        for piece in pieces(self._process, step):
            self._pace(len(piece["text"]))
            end = self._clock() + self._patience
            while not self._emit(KIND, rank=rank, **piece):
                if self._clock() >= end:
                    # Nobody reads any more: the script must not wait for each step.
                    self._patience = 0.0
                    return
                self._sleep(0.01)
            self._patience = _PATIENCE_S

    def _pace(self, size: int) -> None:
        now = self._clock()
        if now - self._second < 1.0 and (self._lines >= _MAX_LINES or self._bytes + size > self._max_bytes):
            self._sleep(max(0.0, self._second + 1.0 - now))
            now = self._clock()
        if now - self._second >= 1.0:
            self._second, self._lines, self._bytes = now, 0, 0
        self._lines += 1
        self._bytes += size
