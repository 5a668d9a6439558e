"""The pauses between two looks at a state that changes without notice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pace:
    """Pauses in seconds: `shortest` after a change, then each `slower` times the one before, up to `longest`.

    `jitter` is the part of a pause that is random, so that many waiting processes do not ask at the same moment.
    """

    shortest: float
    longest: float
    slower: float
    jitter: float = 0.0


class Pauses:
    """The pauses of one waiting caller.

    >>> pauses = Pauses(Pace(1, 3, 2))
    >>> pauses.next(), pauses.next(), pauses.next(), pauses.reset(), pauses.next()
    (1.0, 2.0, 3.0, None, 1.0)
    """

    def __init__(self, pace: Pace, *, chance: Callable[[], float] | None = None) -> None:
        self._pace = pace
        self._chance = chance or (_chance if pace.jitter else lambda: 0.0)
        self._pause = pace.shortest

    def reset(self) -> None:
        """Start with the shortest pause again: after a change, another one is likely soon."""
        self._pause = self._pace.shortest

    def next(self) -> float:
        pause = self._pause
        self._pause = min(pause * self._pace.slower, self._pace.longest)
        return pause * (1 - self._pace.jitter * self._chance())


def _chance() -> float:
    # Imported here: most pauses have no jitter, and a job on this machine does not wait for the import.
    import random

    return random.random()  # noqa: S311 - no secret
