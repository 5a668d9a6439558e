"""The request `stacks` of a client: the coordinator asks all hosts, and the first host prints the answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from herringbone_contract.events.requests import Request
from herringbone_entry.host_context import HostContext

if TYPE_CHECKING:
    from herringbone_entry.supervisor.rank_group import RankGroup


def handle(request: Request, context: HostContext, _ranks: RankGroup, _answer: Callable[..., None]) -> None:
    """Pass the request on; its answer is an event `stacks` with the same id."""
    context.report({"kind": "stacks_wanted", "id": request["id"]})
