"""How often something that changes by itself is looked at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pace:
    """Pauses between two looks, in seconds: `shortest` after news, then `slower` times as long each, up to `longest`.

    `jitter` is the part of a pause that chance takes away, so that many who wait do not all ask at once.
    """

    shortest: float
    longest: float
    slower: float
    jitter: float = 0.0


class Pauses:
    """The pauses of one who waits.

    >>> pauses = Pauses(Pace(1, 3, 2))
    >>> pauses.next(), pauses.next(), pauses.next(), pauses.news(), pauses.next()
    (1.0, 2.0, 3.0, None, 1.0)
    """

    def __init__(self, pace: Pace, *, chance: Callable[[], float] | None = None) -> None:
        self._pace = pace
        self._chance = chance or (_chance if pace.jitter else lambda: 0.0)
        self._pause = pace.shortest

    def news(self) -> None:
        """Start over: where something came, more is likely."""
        self._pause = self._pace.shortest

    def next(self) -> float:
        pause = self._pause
        self._pause = min(pause * self._pace.slower, self._pace.longest)
        return pause * (1 - self._pace.jitter * self._chance())


def _chance() -> float:
    # Most pauses have no jitter, and a job on this machine does not wait for the import.
    import random

    return random.random()  # noqa: S311 - no secret
