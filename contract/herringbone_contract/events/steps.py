"""Count the steps of a rank, and send their times to the supervisor about once a second.

`smp`, `smddp` and the Horovod names call `tick` after each step, so that scripts need no line for it. A tick takes
about a microsecond, and a tenth of that where nobody listens.
"""

from __future__ import annotations

import os
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from herringbone_contract.events import emit

# So many times of steps, twice, fit into a line that pipes take whole; more in a second are sent in several events.
MAX_STEPS = 180
# A new owner counts after so many steps without one of the old owner, if that still exists.
_OWNER_STEPS = 100
# In a pipeline, whose ranks wait for each other's messages: when this rank came to each of the last steps, in
# nanoseconds since 1970; the group of ranks that this is compared in; and the step's number. In a rank's record they
# replace its collective operations, which all ranks of a slow pipeline enter late.
entered: deque[tuple[int, str, int]] = deque(maxlen=1000)


class Owner:
    """The object whose steps count, such as an optimizer; of several, the first one.

    >>> owner, first, second = Owner(), set(), set()
    >>> [owner.takes(each) for each in (first, second, first)]
    [True, False, True]

    When the first one is gone, or has not stepped for long, the next one counts.
    """

    def __init__(self) -> None:
        # Weak, because an optimizer holds its parameters.
        self._owner: Callable[[], object] = _gone
        self._others = 0

    def takes(self, owner: object) -> bool:
        """Say whether a step of `owner` counts."""
        if owner is not self._owner():
            self._others += 1
            if self._owner() is not None and self._others < _OWNER_STEPS:
                return False
            self._owner = weakref.ref(owner)
        self._others = 0
        return True


class StepCounter:
    """Counts steps and joins their times into batches. Pure: the caller passes the time in seconds.

    >>> counter, optimizer = StepCounter(), set()
    >>> [counter.tick(now, optimizer) for now in (10.0, 10.5)]
    [None, None]
    >>> counter.tick(11.25, optimizer)
    {'count': 3, 'seconds': [0.5, 0.75]}

    The first step has no time, because nobody knows its begin. Only the steps of one `Owner` count: a script with two
    optimizers takes one step of each.

    Ranks that sum their gradients all take as long for a step as the slowest one. `hand_over` notes when this rank has
    handed over gradients, so the member `own` has its own time, without the wait for the other ranks:

    >>> counter.hand_over(11.5); counter.tick(12.25, optimizer)
    {'count': 4, 'seconds': [1.0], 'own': [0.25]}
    """

    def __init__(self) -> None:
        self._owner = Owner()
        self.count = 0
        self._last: float | None = None
        self._due = 0.0
        self._handed: float | None = None
        self._seconds: list[float] = []
        self._own: list[float] = []

    def hand_over(self, now: float | None) -> None:
        """Note that the gradients which this rank has by now are on their way to the others.

        None: it has waited for others before, so that the time until here is not its own.
        """
        self._handed = now

    def tick(self, now: float, owner: object) -> dict[str, Any] | None:
        """Count a step that ends now; return a batch once a second, or when it is full."""
        if not self._owner.takes(owner):
            return None
        self.count += 1
        if self._last is None:
            self._due = now + 1.0
        else:
            self._seconds.append(now - self._last)
            if self._handed is not None and self._handed >= self._last:
                self._own.append(self._handed - self._last)
        self._last = now
        if now < self._due and len(self._seconds) < MAX_STEPS:
            return None
        self._due = now + 1.0
        return self.batch()

    def batch(self) -> dict[str, Any] | None:
        """Return the steps since the last batch, None if there are none."""
        seconds, self._seconds = self._seconds, []
        own, self._own = self._own, []
        if not seconds:
            return None
        batch = {"count": self.count, "seconds": _rounded(seconds)}
        # A step that handed over no gradients has no own time, and then the two lists would not be of the same steps.
        return {**batch, "own": _rounded(own)} if len(own) == len(seconds) else batch


def _rounded(seconds: list[float]) -> list[float]:
    # Four digits: a line must be short, and no clock is better.
    return [float(f"{value:.4g}") for value in seconds]


def _gone() -> object:
    return None


def _send(batch: dict[str, Any] | None) -> None:
    if batch is not None:
        # The time at which the first of these steps began.
        emit.emit("steps", since=time.time() - sum(batch["seconds"]), **batch)


def is_heard() -> bool:
    """Say whether this process is a rank whose events somebody reads."""
    return emit.VARIABLE in os.environ


def ticker(clock: Callable[[], float] = time.perf_counter) -> Callable[[object], None]:
    """Return the function that counts the steps of this rank; it does nothing where nobody listens."""
    if not is_heard():
        return lambda _: None
    import atexit

    global _counter
    counter = _counter = StepCounter()

    def tick(owner: object) -> None:
        batch = counter.tick(clock(), owner)
        if batch is not None:
            _send(batch)

    # The steps of the last second; a process that is killed loses them.
    atexit.register(lambda: _send(counter.batch()))
    return tick


_tick: Callable[[object], None] | None = None
# Set at the first step, if somebody listens.
_counter: StepCounter | None = None


def tick(owner: object) -> None:
    """Count a step of this rank that ends now; nothing happens outside a job.

    tick(optimizer)
    """
    global _tick
    if _tick is None:
        # At the first step, when the rank's environment is complete.
        _tick = ticker()
    _tick(owner)


def count() -> int:
    """Return how many steps this rank has taken, 0 where nobody listens."""
    return 0 if _counter is None else _counter.count


def hand_over(*, has_waited: bool = False) -> None:
    """Note that this rank has handed over gradients, and may wait for the other ranks from here on.

    hand_over()

    With `has_waited` it has waited for others before, as the ranks of a pipeline do.
    """
    if _counter is not None:
        _counter.hand_over(None if has_waited else time.perf_counter())
