"""Carry out a client's request to attach a debugger to a rank of this host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from herringbone_contract.events.requests import Request
from herringbone_entry.host_context import HostContext
from herringbone_entry.supervisor.rank_group import RankGroup
from herringbone_entry.supervisor.rank_orders import RankOrder

# A rank on a busy machine takes seconds to load debugpy. Clients wait a little longer.
_SECONDS = 15.0


def handle(request: Request, context: HostContext, ranks: RankGroup, answer: Callable[..., None]) -> None:
    """Have the rank listen for a debugger; answer with `value`, which is None if the rank is on another host.

    `value` is {rank, pid, host, port, python, executable, debugpy, code}: `port` is on this host's loopback, and `code`
    is the folder of the job's code here.
    """
    number = request.get("rank")
    rank = next((rank for rank in ranks.living if rank.placement.rank == number), None)
    if rank is None or rank.pid is None:
        answer(value=None)
        return
    pid = rank.pid

    def done(reply: dict[str, Any]) -> None:
        if "error" in reply:
            answer(error=f"rank {number}: {reply['error']}")
            return
        facts = {"rank": number, "pid": pid, "host": context.host.name, "code": str(context.host.paths.code)}
        answer(value={**reply, **facts})

    RankOrder(context.loop, ranks.orders, pid, "debug", request["id"], done).send(_SECONDS)
