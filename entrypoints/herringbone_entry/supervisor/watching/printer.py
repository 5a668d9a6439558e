"""The voice of the watchers of a job: the first host prints what they find, as lines of the log and as events."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from herringbone_entry.channel.messages import Order


class Printer:
    """Has a host print.

    >>> printer = Printer("algo-1", print)
    >>> printer.say("hang: no line")
    {'kind': 'say', 'host': 'algo-1', 'text': 'hang: no line'}
    """

    def __init__(self, host: str, order: Callable[[Order], None]) -> None:
        self._host, self._order = host, order

    def say(self, text: str) -> None:
        """Have lines of the log printed."""
        self._order({"kind": "say", "host": self._host, "text": text})

    def emit(self, kind: str, **members: Any) -> None:
        """Have an event written; `events.format` has its members."""
        self._order({"kind": "emit", "host": self._host, "event": {"kind": kind, **members}})
