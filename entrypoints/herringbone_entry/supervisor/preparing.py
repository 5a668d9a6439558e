"""The supervisor of a host that is not ready: it runs no rank, and waits for the coordinator's last order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from herringbone_entry import processes
from herringbone_entry.host_context import HostContext
from herringbone_entry.supervisor.ending import Ending
from herringbone_entry.supervisor.membership import Membership

if TYPE_CHECKING:
    from herringbone_entry.channel.messages import Order


class PreparingSupervisor:
    """Obeys orders until the host is ready, and also when preparation failed or was stopped."""

    # For clients' requests: there are no ranks yet.
    ranks = None

    def __init__(self, context: HostContext, membership: Membership) -> None:
        self._context = context
        # pip, or a rank that was started ahead, may still run.
        self._ending = Ending(context, membership, on_kill=lambda: None)

    def receive(self, order: Order) -> None:
        """Obey an order; without ranks there is nothing to stop, abort or kill."""
        # `stop`, `abort` and `kill` also arrive here when this host has failed; they concern ranks alone.
        if order["kind"] == "say":
            self._context.log(order["text"])
        elif order["kind"] == "finish":
            self._ending.begin(order)

    def reap(self) -> None:
        """Collect children that have ended: preparation waits for its own, so these are of no interest."""
        processes.reap()
