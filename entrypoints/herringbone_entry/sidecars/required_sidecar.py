"""A companion that must last as long as the ranks do: a helper host's server, a parameter server, its scheduler."""

from __future__ import annotations

import signal
from collections.abc import Callable

from herringbone_contract.failure import Failure, exit_code_of
from herringbone_entry.channel.frames import Message
from herringbone_entry.sidecars.sidecar import Companion


class Attendant:
    """Holds the companion of a host until `end` or `kill`; `what` names it in messages.

    `tell` gets an event when it ends before that, which is seen by who reaps children: `reaped`. One that `leaves` may
    end well when the ranks have told it to, which they do shortly before their own end.
    """

    def __init__(
        self, companion: Companion, what: str, host: str, tell: Callable[[Message], None], *, leaves: bool = False
    ) -> None:
        self._companion: Companion | None = companion
        self._what, self._host, self._tell, self._leaves = what, host, tell, leaves
        self._ending = False

    @property
    def runs(self) -> bool:
        return self._companion is not None

    def end(self) -> None:
        """The job is over: let it go."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def reaped(self, pid: int, returncode: int) -> None:
        """A child of this process has ended."""
        if self._companion is None or pid != self._companion.pid:
            return
        last_words, self._companion = self._companion.last_words(), None
        if not self._ending and (returncode or not self._leaves):
            self.fail(exit_code_of(returncode), f"{self._what} ended before the ranks did", last_words)

    def fail(self, code: int, message: str, last_words: tuple[str, ...] = ()) -> None:
        found = Failure(self._host, None, code, "", message, (), last_words)
        self._tell({"kind": "server_ended", "code": code, "failure": found.to_json()})

    def _signal(self, number: signal.Signals) -> None:
        self._ending = True
        if self._companion is not None:
            self._companion.signal(number)


class Attendants:
    """Several of one host, as if they were one."""

    def __init__(self, *members: Attendant) -> None:
        self._members = members

    @property
    def runs(self) -> bool:
        return any(member.runs for member in self._members)

    def end(self) -> None:
        for member in self._members:
            member.end()

    def kill(self) -> None:
        for member in self._members:
            member.kill()

    def reaped(self, pid: int, returncode: int) -> None:
        for member in self._members:
            member.reaped(pid, returncode)
