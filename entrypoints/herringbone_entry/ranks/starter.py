"""Starts ranks as children of the supervisor: the first of them in the spare, where that serves."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from herringbone_entry.channel.frames import Message
from herringbone_entry.launchers.plain import rank_argv
from herringbone_entry.ranks.attach import REPORT
from herringbone_entry.ranks.rank_process import RankProcess
from herringbone_entry.spawn import spawn

if TYPE_CHECKING:
    from herringbone_entry.ranks.prewarm import Spare


class RankStarter:
    """Starts one rank after the other; `spare` will be the first."""

    def __init__(self, spare: Spare | None = None) -> None:
        self._spare = spare

    def start(
        self, make: Callable[..., RankProcess], orders: Message, python: str, inherited: Mapping[str, str]
    ) -> RankProcess:
        """Return a rank that runs, with its orders on their way.

        `make()` makes what follows it; `make(pipes=...)` where its pipes are there already.
        """
        spare, self._spare = self._spare, None
        if spare is not None:
            if spare.serves(python, inherited):
                return self._take(spare, make, orders, inherited)
            spare.discard()
        rank = make()
        ours, theirs = socket.socketpair()
        with theirs:
            stdout, stderr = rank.writers
            environment = {**inherited, REPORT: str(theirs.fileno())}
            pid = spawn(rank_argv(python), environment, stdout=stdout, stderr=stderr, inherit=[theirs.fileno()])
        rank.started()
        rank.link(ours, pid, orders)
        return rank

    def discard_spare(self) -> None:
        """There will be no use for it."""
        if self._spare is not None:
            self._spare.discard()
            self._spare = None

    @staticmethod
    def _take(
        spare: Spare, make: Callable[..., RankProcess], orders: Message, inherited: Mapping[str, str]
    ) -> RankProcess:
        rank = make(pipes=spare.pipes)
        rank.started()
        environment = {**spare.lacks(inherited), **orders["environment"]}
        rank.link(spare.connection, spare.pid, {**orders, "environment": environment})
        return rank
