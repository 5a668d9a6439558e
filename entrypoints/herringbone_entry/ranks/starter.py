"""Start ranks as children of the supervisor: the first one in the prewarmed Python, if that serves."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from herringbone_entry.channel.attach import REPORT
from herringbone_entry.channel.frames import Message
from herringbone_entry.launchers.plain import rank_argv
from herringbone_entry.processes import spawn
from herringbone_entry.ranks.rank_process import RankProcess

if TYPE_CHECKING:
    from herringbone_entry.ranks.prewarm import PrewarmedRank


class RankStarter:
    """Starts one rank after the other; `prewarmed` becomes the first one."""

    def __init__(self, prewarmed: PrewarmedRank | None = None) -> None:
        self._prewarmed = prewarmed

    def start(
        self, make: Callable[..., RankProcess], message: Message, python: str, inherited: Mapping[str, str]
    ) -> RankProcess:
        """Return a rank that runs, with its start message on its way.

        `make()` makes the object that follows the rank; `make(pipes=...)` when the rank's pipes exist already.
        """
        # At most one rank uses it, and this starter owns it until then.
        prewarmed, self._prewarmed = self._prewarmed, None
        if prewarmed is not None:
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
        """End the prewarmed rank: this host has no use for it."""
        if self._prewarmed is not None:
            self._prewarmed.discard()
            self._prewarmed = None

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
