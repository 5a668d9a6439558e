"""Start ranks as children of the supervisor: the first one in the prewarmed Python, if that serves."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from herringbone_entry.channel.attach import REPORT
from herringbone_entry.channel.frames import Message
from herringbone_entry.launchers.plain import rank_argv
from herringbone_entry.processes import spawn
from herringbone_entry.ranks.rank_process import RankProcess

if TYPE_CHECKING:
    from herringbone_entry.ranks.prewarm import PrewarmedRank


class RankStarter:
    """Starts one rank after the other; those in `prewarmed` become the first ones.

    `starts` is the beginning of files for their start messages, from which a standby prepares; "" for none.
    """

    def __init__(self, prewarmed: Sequence[PrewarmedRank] = (), starts: str = "") -> None:
        self._prewarmed = list(prewarmed)
        self._starts, self._count = starts, 0

    def start(
        self, make: Callable[..., RankProcess], message: Message, python: str, inherited: Mapping[str, str]
    ) -> RankProcess:
        """Return a rank that runs, with its start message on its way.

        `make()` makes the object that follows the rank; `make(pipes=...)` when the rank's pipes exist already.
        """
        if self._starts:
            from herringbone_entry.ranks.ahead import standby

            standby.record(self._starts, self._count, message, python)
        self._count += 1
        # At most one rank uses it, and this starter owns it until then.
        if self._prewarmed:
            prewarmed = self._prewarmed.pop(0)
            if prewarmed.serves(python, inherited):
                return self._take(prewarmed, make, message, inherited)
            prewarmed.discard()
        rank = make()
        ours, theirs = socket.socketpair()
        # Our copy of the rank's end must close: the end of the link is how we see a rank's death.
        with theirs:
            stdout, stderr = rank.writers
            environment = {**inherited, REPORT: str(theirs.fileno())}
            pid = spawn(rank_argv(python), environment, stdout=stdout, stderr=stderr, inherit=[theirs.fileno()])
        rank.started()
        rank.link(ours, pid, message)
        return rank

    def discard_prewarmed(self) -> None:
        """End the prewarmed ranks that are left: this host has no use for them."""
        while self._prewarmed:
            self._prewarmed.pop().discard()

    @staticmethod
    def _take(
        prewarmed: PrewarmedRank, make: Callable[..., RankProcess], message: Message, inherited: Mapping[str, str]
    ) -> RankProcess:
        rank = make(pipes=prewarmed.pipes)
        rank.started()
        # It started before the private line was read, so it lacks what that line brought.
        environment = {**prewarmed.lacks(inherited), **message["environment"]}
        rank.link(prewarmed.connection, prewarmed.pid, {**message, "environment": environment})
        return rank
