"""One job on its machines, as it is heard of: a visit to each, taken up again when it breaks.

Nothing here waits: a look takes in what has come, and begins what is to be begun.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from herringbone.backends.ssh.agent.messages import Message
from herringbone.backends.ssh.connection import Visit
from herringbone.backends.ssh.inventory import Machine
from herringbone.backends.ssh.job_state import HostState, is_over
from herringbone.backends.ssh.transport import Road
from herringbone_contract.errors import HostError
from herringbone_contract.failure_text import parse_failure

# A machine whose visit broke is tried again after these many seconds, the last of them from then on.
_RETRY_SECONDS = (0.0, 0.5, 1.0, 2.0, 5.0)
# Once other hosts are over, theirs has been told by them or has noticed itself: longer it is not waited for.
PATIENCE_SECONDS = 5.0
BLAMED_PATIENCE_SECONDS = 1.0
# A connection that broke is not worth a word while it can be taken up again at once.
_WORTH_A_WORD_SECONDS = 2.0
# A machine with whose host the others lost contact is asked whether it is there; one that is answers within it.
ANSWER_SECONDS = 0.75


class HostView:
    """One host and the visit to its machine."""

    def __init__(self, job: str, host: str, machine: Machine, road: Road[Machine], visit: Visit | None) -> None:
        self.host, self.machine = host, machine
        self._job, self._road = job, road
        self._visit: Visit | None = None
        self._given = visit
        self._trials, self._next_trial = 0, 0.0
        self._takers: dict[int, tuple[Callable[[bytes], None], int]] = {}
        self._waiting: list[tuple[Callable[[bytes], None], int]] = []
        self.row: dict[str, Any] | None = None
        self.record: str | None = None
        self.left: list[str] = []
        self.ahead = 0.0
        self.trouble = ""
        self.heard = self._broken_at = 0.0
        self.forgotten = False

    @property
    def state(self) -> HostState:
        forgotten = self.trouble if self.forgotten else ""
        return HostState(self.host, self.machine.name, self.row, self.record, self.ahead, forgotten, self.forgotten)

    def silence(self, now: float) -> str:
        """Say why nothing is heard of the machine for a while; empty where something is."""
        return self.trouble if self.trouble and now - self._broken_at >= _WORTH_A_WORD_SECONDS else ""

    def take_log(self, take: Callable[[bytes], None], offset: int = 0) -> None:
        """Have the host's log from `offset` (bytes) on given to `take`, in pieces, as it comes."""
        if self._visit is None:
            self._waiting.append((take, offset))
        else:
            self._takers[self._ask_for_log(self._visit, offset)] = (take, offset)

    def look(self, now: float) -> None:
        """Take in what has come."""
        if self._visit is None:
            if self.forgotten or now < self._next_trial:
                return
            self._begin()
        assert self._visit is not None
        try:
            for message, payload in self._visit.messages():
                self._take(message, payload, now)
        except HostError as error:
            self._lost(str(error), now)

    def tell(self, message: Message) -> None:
        """Send a request if there is a visit; nobody waits for an answer."""
        if self._visit is not None:
            self._visit.send(message)

    def hang_up(self) -> None:
        """Begin to close; nothing is waited for."""
        for visit in (self._visit, self._given):
            if visit is not None:
                visit.hang_up()

    def close(self, *, patiently: bool = True) -> None:
        for visit in (self._visit, self._given):
            if visit is not None:
                visit.close(patiently=patiently)
        self._visit = self._given = None

    def _begin(self) -> None:
        self._visit, self._given = self._given or self._road.visit(self.machine), None
        self._visit.send({"ask": "follow", "job": self._job, "host": self.host})
        waiting, self._waiting = self._waiting, []
        for take, offset in waiting:
            self.take_log(take, offset)

    def _ask_for_log(self, visit: Visit, offset: int) -> int:
        return visit.send({"ask": "log", "job": self._job, "host": self.host, "offset": offset})

    def _take(self, message: Message, payload: bytes, now: float) -> None:
        self._trials, self.trouble, self.heard = 0, "", now
        if "log" in message:
            take, offset = self._takers[message["log"]]
            self._takers[message["log"]] = (take, offset + len(payload))
            take(payload)
        elif "row" in message:
            self.row, self.record = message["row"], message.get("record")
            self.left = message.get("left", [])
            self.ahead = message["now"] - time.time()
        elif "refused" in message:
            # The machine is there, and knows nothing of the job any more: nor will it.
            self.forgotten = True
            self._lost(message["refused"], now)

    def _lost(self, why: str, now: float) -> None:
        self.close()
        if not self.trouble:
            self._broken_at = now
        self.trouble = why.removeprefix(f"{self.machine.name}: ")
        self._waiting += self._takers.values()
        self._takers.clear()
        self._next_trial = now + _RETRY_SECONDS[min(self._trials, len(_RETRY_SECONDS) - 1)]
        self._trials += 1


class Following:
    """All hosts of one job; `visits` are those that are there already, by host.

    >>> following = Following("digits-1", {"algo-1": machine}, road)           # doctest: +SKIP
    >>> following.look(); is_over(following.states)                             # doctest: +SKIP
    False
    """

    def __init__(
        self,
        job: str,
        machines: Mapping[str, Machine],
        road: Road[Machine],
        *,
        visits: Mapping[str, Visit] = MappingProxyType({}),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.job = job
        self._clock = clock
        self.views = {host: HostView(job, host, machine, road, visits.get(host)) for host, machine in machines.items()}
        self._first_end: float | None = None
        self._told_to_end = False
        self._lost: set[str] = set()
        self._closed = False

    def look(self) -> None:
        """Take in what all machines say, and give up those that stay silent after the others have ended."""
        if self._closed:
            return
        now = self._clock()
        for view in self.views.values():
            if not view.state.done:
                view.look(now)
        self._give_up(now)

    def silences(self) -> dict[str, str]:
        """Return why hosts are not heard of, by their names; a host that is heard of is not in it."""
        now = self._clock()
        found = {view.host: view.silence(now) for view in self.views.values() if not view.state.done}
        return {host: why for host, why in found.items() if why}

    @property
    def states(self) -> list[HostState]:
        found = []
        for view in self.views.values():
            state = view.state
            if view.host in self._lost and not state.done:
                why = view.trouble or "it does not answer"
                state = HostState(state.host, state.machine, state.row, state.record, state.ahead, lost=why)
            found.append(state)
        return found

    @property
    def is_over(self) -> bool:
        return is_over(self.states)

    def close(self) -> None:
        self._closed = True
        for view in self.views.values():
            view.hang_up()
        for view in self.views.values():
            # What is lost does not say goodbye.
            view.close(patiently=view.host not in self._lost)

    def _give_up(self, now: float) -> None:
        ended = [view for view in self.views.values() if view.row is not None and view.state.done]
        living = [view for view in self.views.values() if not view.state.done]
        if not ended or not living:
            return
        if self._first_end is None:
            self._first_end = now
            for view in living:
                view.tell({"ask": "owner"})
        blamed = {_blamed(view.row) for view in ended}
        if now >= self._first_end + ANSWER_SECONDS:
            # Neither the others nor we hear of it.
            mute = [view for view in living if view.host in blamed and view.heard <= self._first_end]
            self._lose(mute)
            living = [view for view in living if view not in mute]
        patience = PATIENCE_SECONDS
        if {view.host for view in living} <= blamed:
            # The others have waited for it already.
            patience = BLAMED_PATIENCE_SECONDS
        if now < self._first_end + patience:
            return
        if not self._told_to_end:
            self._told_to_end = True
            self._tell_to_end(living)
        if now >= self._first_end + 2 * patience or all(view.trouble for view in living):
            self._lose(living)

    def _lose(self, views: Sequence[HostView]) -> None:
        """Give machines up; one that hears it after all ends what it still has of the job."""
        self._tell_to_end([view for view in views if view.host not in self._lost])
        self._lost.update(view.host for view in views)

    def _tell_to_end(self, views: Sequence[HostView]) -> None:
        for view in views:
            with contextlib.suppress(HostError):
                view.tell({"ask": "kill", "job": self.job})


def _blamed(row: Mapping[str, Any] | None) -> str | None:
    """Return which host a host's failure names; None where it names none."""
    if row is None or row["failure"] is None:
        return None
    return parse_failure(row["failure"]).host
