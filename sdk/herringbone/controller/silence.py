"""Hosts that stand still: a supervisor that is stopped, or whose container is paused. Pure.

Supervisors send `alive` events, and all other output of a host is a sign of life as well. A host that has sent no such
event (a program of a foreign image, or a supervisor of an earlier release) is not watched.

    heartbeats without a sign of life    step
    3                                    NOTICE    a line in the log
    6                                    WAKE      the host continues, if something had stopped it
    12                                   GIVE_UP   the host is lost, as one is whose machine went down
"""

from __future__ import annotations

import enum

_NEVER = float("inf")


class Step(enum.IntEnum):
    """A step after a silence, with the length of the silence in heartbeats."""

    NOTICE = 3
    WAKE = 6
    GIVE_UP = 12


class Silence:
    """The silence of one host; times are seconds of one clock.

    >>> silence = Silence()
    >>> silence.hear(100.0, every=5.0)
    False
    >>> silence.due, silence.take(115.0), silence.due
    (115.0, <Step.NOTICE: 3>, 130.0)
    """

    def __init__(self) -> None:
        self._every, self._heard_at = 0.0, 0.0
        self._steps: list[Step] = []

    @property
    def due(self) -> float:
        """The time of the next step, if nothing is heard before."""
        return self._heard_at + self._steps[0] * self._every if self._steps else _NEVER

    @property
    def was_noticed(self) -> bool:
        """Report whether a step was taken, and nothing heard since."""
        return bool(self._every) and len(self._steps) < len(Step)

    @property
    def seconds(self) -> float:
        """The length of the silence at the last step."""
        lengths: list[int] = [0, *Step]
        return self._every * lengths[-1 - len(self._steps)]

    def hear(self, now: float, every: float) -> bool:
        """Note a sign of life of a host with a heartbeat (0.0: with none); return whether its silence was noticed."""
        was_noticed = self.was_noticed
        self._every, self._heard_at = every, now
        self._steps = list(Step) if every else []
        return was_noticed

    def take(self, now: float) -> Step | None:
        """Return the step that is due, None before its time."""
        if now < self.due:
            return None
        # Nobody looked in time, so this process, or the whole machine, stood still itself.
        if now > self.due + self._every:
            self._heard_at = now
            return None
        return self._steps.pop(0)
