"""The stop of a job: the call of `should_stop` at which its ranks stop, and how the job ends.

`events.stop_file` has the picture of the agreement. No I/O: orders and time go through the constructor's arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from herringbone_contract.events.stop_file import chosen
from herringbone_contract.failure import STOPPED_CODE, Failure, taken_away

if TYPE_CHECKING:
    from herringbone_entry.channel.messages import Asked, Order, StopWanted

# Ranks get SIGTERM where some host has not said by then how many calls its ranks have made.
ASK_SECONDS = 1.0
# Ranks that hang ask no more, and those whose loss is no number have nothing worth saving.
_NOT_ASKED = ("hang", "nan_loss")


class JobStop:
    """Asks the hosts of a job how far their ranks are, and orders the stop.

    >>> orders = []
    >>> stop = JobStop(["algo-1", "algo-2"], order=orders.append, later=lambda seconds, call: None)
    >>> stop.begin("algo-1", {"kind": "stop", "why": "SIGTERM", "leaving": False})
    >>> for host, most in (("algo-1", 7), ("algo-2", 9)):
    ...     stop.receive(host, {"kind": "asked", "most": most})
    >>> orders
    [{'kind': 'ask', 'why': 'SIGTERM'}, {'kind': 'stop', 'call': 10}]
    """

    def __init__(
        self,
        hosts: Sequence[str],
        *,
        order: Callable[[Order], None],
        later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self._hosts, self._order, self._later = hosts, order, later
        # The most calls of a rank, by host; None before the question, and once the ranks know when to stop.
        self._most: dict[str, int] | None = None
        # Whether ranks have heard of the stop; those that a fault ends have not come to their end either.
        self._has_obeyed = False
        self._failure: Failure | None = None

    def begin_after_fault(self, kind: str, failure: Failure) -> None:
        """Begin the stop that follows a fault."""
        self._has_obeyed, self._failure = True, failure._replace(fault=kind, exit_code=STOPPED_CODE)
        if kind in _NOT_ASKED:
            self._order({"kind": "stop", "call": 0})
        else:
            self._ask(kind)

    def begin(self, host: str, stop: StopWanted) -> None:
        """Begin the stop that a host wants."""
        if stop["leaving"]:
            self._failure = taken_away(host, stop["why"])
        self._ask(stop["why"])

    def _ask(self, why: str) -> None:
        self._most = {}
        self._order({"kind": "ask", "why": why})
        self._later(ASK_SECONDS, self._decide)

    def receive(self, host: str, asked: Asked) -> None:
        """Take the answer of a host."""
        if self._most is not None:
            self._most[host] = asked["most"]
            if len(self._most) == len(self._hosts):
                self._decide()

    def note_end(self, *, obeyed: bool) -> None:
        """Note that a rank has ended; `obeyed`: a rank of its host has made the call."""
        self._has_obeyed = self._has_obeyed or obeyed

    def end(self, codes: Iterable[int | None]) -> tuple[int, Failure | None]:
        """Return the job's exit code and failure, from the exit codes of its ranks."""
        # A script that has heard of the stop has not come to its end, although it exits with 0.
        if self._has_obeyed or any(code != 0 for code in codes):
            return STOPPED_CODE, self._failure
        return 0, None

    def _decide(self) -> None:
        most, self._most = self._most, None
        if most is not None:
            # Ranks of a host that has not answered may have made the call already, and would run on without the others.
            self._order({"kind": "stop", "call": chosen(most.values()) if len(most) == len(self._hosts) else 0})
