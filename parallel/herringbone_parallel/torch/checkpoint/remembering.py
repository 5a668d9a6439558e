"""Save into memory every few steps: as often as the training may wait for it, one percent of its time.

step:      1   2   3   4   5   6   7  ...
           |   |   save            save         the next one is `interval(blocked, step)` later: the same on all ranks,
           +---+ the time of a step             by the exchange that every rank makes before a save
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import partial

from herringbone_contract.constants import HostVariable
from herringbone_contract.memory import link
from herringbone_contract.memory.rules import BLOCKED_SHARE, interval
from herringbone_parallel.torch.checkpoint import memory
from herringbone_parallel.torch.checkpoint.peers import Peers
from herringbone_parallel.torch.checkpoint.targets import MemoryTarget, Target

# An interval is told again when it has changed by this factor.
_TOLD_AGAIN = 4
# The first steps load libraries and find their kernels.
_FIRST = 3
# What the ranks exchange: none may save, this rank must wait, or has no holder.
_FREE, _BUSY, _GONE = 0, 1, 2
_Start = Callable[[Callable[[str, str], Target]], object]


class Remembering:
    """The saves into memory of one loop; nothing where the job has no holders.

    remembering.at(step, peers, lambda target: saver.start(target, tag, state, contents, None, True), is_idle)
    """

    def __init__(self) -> None:
        self._path = memory.holder()
        fixed = os.environ.get(HostVariable.MEMORY_STEPS, "")
        # Given by the user, otherwise measured.
        self._fixed = int(fixed) if fixed.isdecimal() and int(fixed) > 0 else 0
        self._every = self._told = self._fixed
        self._next: int | None = None
        # Ranks with a group of their own: on one rank, an earlier save may still talk in the background, and on another
        # not, so that this exchange would meet that talk.
        self._peers: Peers | None = None
        # The step and the time at which the last save had begun; the seconds for which it held the loop up.
        self._begun = (0, 0.0)
        self._blocked = 0.0

    @property
    def is_on(self) -> bool:
        """True if the job has holders, and saves into memory were possible until now."""
        return self._path is not None

    def at(self, step: int, peers: Peers, start: _Start, is_idle: Callable[[], bool]) -> None:
        """Save if this step is one to save at; every rank calls between the same two steps.

        `is_idle` says whether no earlier save runs. A save that cannot be made is said once, and training goes on.
        """
        if self._path is None or not peers.only_savers:
            return
        now = time.monotonic()
        if self._next is None:
            self._next, self._begun = step + (self._fixed or _FIRST), (step, now)
        if step < self._next:
            return
        if self._peers is None:
            self._peers = Peers.of_group() if peers.size > 1 else peers
        state, every = self._peers.begin_maxima((self._state(is_idle), self._wanted(step, now)))()
        far = max(every, self._told) >= _TOLD_AGAIN * min(every, self._told)
        if far and self._blocked and peers.rank == 0:
            self._told = every
            shown = f"one holds the loop up for {self._blocked * 1e3:.1f} ms, {BLOCKED_SHARE:.0%} of its time at most"
            self._say(f"saves into memory every {every} steps: {shown}")
        self._every = every
        self._next, self._begun = step + max(every, 1), (step, now)
        if state == _FREE:
            try:
                start(partial(MemoryTarget, self._path, step))
            except Exception as error:  # noqa: BLE001 - on all ranks alike: a save on disk would fail, too, and say so
                self._say(f"no more saves into memory: {error}")
                self._path = None
        elif state == _GONE:
            self._next += max(every, 1)
        self._blocked = time.monotonic() - now

    def _wanted(self, step: int, now: float) -> int:
        """Return the interval by the last save, and the steps since."""
        began, at = self._begun
        if self._fixed or step <= began:
            return self._fixed or self._every
        return interval(self._blocked, max(now - at - self._blocked, 0.0) / (step - began), self._every)

    def _state(self, is_idle: Callable[[], bool]) -> int:
        assert self._path is not None
        if not is_idle():
            return _BUSY
        try:
            return _BUSY if link.ask(self._path, {"do": "room"})[0].get("busy") else _FREE
        except OSError as error:
            self._say(f"this step is not kept in memory: {error}")
            return _GONE

    def _say(self, text: str) -> None:
        print(f"herringbone: {text}", file=sys.stderr, flush=True)
