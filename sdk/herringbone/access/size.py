"""Ask a running job to go on with another number of hosts: `herringbone scale`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from herringbone.plan.shown import RESIZED
from herringbone.records.index import PENDING
from herringbone_contract.errors import RequestError, UnsupportedError
from herringbone_contract.events.requests import SCALE

if TYPE_CHECKING:
    from herringbone.protocols.backend import Backend


def ask_for_size(backend: Backend, name: str, hosts: int) -> int:
    """Ask a job to go on with so many hosts, and return how many it has until then.

    Raises `RequestError` for a job that cannot have them now, and `UnsupportedError` where no job can.
    """
    from herringbone.access.requests import ask

    record = backend.describe(name)
    if record.backend not in RESIZED:
        raise UnsupportedError(
            f"job {name} runs on {record.backend}, where a job keeps its number of hosts while it runs; "
            f"{' and '.join(RESIZED)} serve `herringbone scale`"
        )
    if record.secondary_status == PENDING:
        raise RequestError(f"job {name} waits in line, and has no hosts yet; stop it, and submit it with other hosts")
    # The first host is in every attempt.
    first = [str(host["name"]) for host in record.plan_dict["hosts"][:1]]
    [answer] = ask(backend, name, SCALE, hosts=first, count=hosts).values()
    if error := answer.get("error"):
        raise RequestError(f"job {name} does not go on with {hosts} hosts: {error}")
    return int(answer.get("text") or 0)
