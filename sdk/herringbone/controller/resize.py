"""Another number of hosts for a job that runs: the requests of `herringbone scale`, and what they change.

    scale --> `take_requests` --> SIGTERM to all hosts, whose ranks save and end --> `end_attempt` --> `rewrite_hosts`
                  |                                                                                        |
                  +--- refused: an answer with the reason                                           the next attempt

A change of size is a planned restart: it costs no attempt of `max_retry_attempts`, and blames no machine.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from herringbone.controller.requests import answer, forward
from herringbone.controller.retry import Attempt
from herringbone_contract.constants import MAX_RECORD_BYTES
from herringbone_contract.events.requests import SCALE
from herringbone_contract.paths import INSIDE
from herringbone_contract.resources import parse_resource_config
from herringbone_contract.safe_tree import read_file, rewrite

if TYPE_CHECKING:
    from herringbone.controller.hosts import Site
    from herringbone.protocols.controller_config import ControllerConfig


def counted(hosts: int) -> str:
    """Return a number of hosts in words.

    >>> counted(1), counted(3)
    ('1 host', '3 hosts')
    """
    return f"{hosts} host{'s' * (hosts != 1)}"


def refusal(sizes: Sequence[int], present: int, wanted: object, *, planned: Attempt | None, is_ending: bool) -> str:
    """Return why a job with `present` hosts does not go on with another number of them; "" where it does.

    >>> refusal([4, 3, 2], 3, 1, planned=None, is_ending=False)
    '1 host is fewer than min_instance_count, 2'

    `sizes` are the numbers that the job may have, largest first; empty where it keeps its hosts. `planned` is a
    change that is under way, and `is_ending` says that the hosts end for another reason.
    """
    if not isinstance(wanted, int) or isinstance(wanted, bool) or wanted < 1:
        return f"{wanted!r} is no number of hosts"
    if not sizes:
        return f"the job keeps its {counted(present)}: it has no min_instance_count"
    if planned is not None:
        return f"the job is on its way to {counted(planned.next_hosts)}; ask again when they run"
    if is_ending:
        return "the job's hosts are ending"
    if wanted > sizes[0]:
        return f"{wanted} hosts are more than instance_count, {sizes[0]}"
    if wanted < sizes[-1]:
        return f"{counted(wanted)} {'is' if wanted == 1 else 'are'} fewer than min_instance_count, {sizes[-1]}"
    if wanted not in sizes:
        return f"the distribution has no layout on {wanted} hosts; it has one on {', '.join(map(str, sizes))}"
    return f"the job has {counted(present)} already" if wanted == present else ""


def take_requests(folder: str, config: ControllerConfig, site: Site, *, is_ending: bool) -> bool:
    """Forward the requests of clients to the hosts, and answer those about the number of hosts.

    Returns True if the hosts must end now: `site.planned` has the size of the next attempt then.
    """
    has_changed = False
    absent = [host["name"] for host in config["hosts"][len(site.hosts) :]] if config["sizes"] else []
    for request in forward(folder, site.hosts, absent, SCALE):
        present, wanted = len(site.hosts), request.get("count")
        why = refusal(config["sizes"], present, wanted, planned=site.planned, is_ending=is_ending)
        if not why:
            assert isinstance(wanted, int)
            why_it_ends = f"{present} -> {counted(wanted)}: asked by `herringbone scale`"
            number = len(site.failed_attempts) + 1
            site.planned = Attempt(number, dict(site.machines), why_it_ends, next_hosts=wanted)
            has_changed = True
        answer(config["logs"], site.hosts[0].name, request, text="" if why else str(present), error=why)
    return has_changed


def rewrite_hosts(config: ControllerConfig, count: int) -> None:
    """Name the hosts of the next attempt, the first `count` of the job, in the files that they will read.

    Raises `OSError`, or `ContractError` for a file that the script has changed.
    """
    names = tuple(host["name"] for host in config["hosts"][:count])
    for host in config["hosts"][:count]:
        file = INSIDE.resource_config
        found = parse_resource_config(read_file(host["base"], str(file), limit=MAX_RECORD_BYTES))
        groups = tuple(group._replace(hosts=names) for group in found.groups)
        content = found._replace(current_host=host["name"], hosts=names, groups=groups).to_json()
        rewrite(host["base"], str(file), json.dumps(content).encode())
