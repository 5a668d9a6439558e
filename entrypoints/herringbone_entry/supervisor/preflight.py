"""Before machines start a job together: do they know each other's names, do they agree, is there room?

Each host looks at itself and asks for the names that it will need (`check`); the first one makes a table of the
answers, with a warning for each thing that may go wrong later (`report`), and decides by what address rank 0's host is
called (`master_address`). Facts travel as messages:

    {"group", "cpus", "gpus", "free_bytes", "interface", "named_interface", "address", "wall", "unknown"}
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence

from herringbone_entry.channel import interfaces
from herringbone_entry.channel.address import Question, Target
from herringbone_entry.channel.frames import Message
from herringbone_entry.host import Host
from herringbone_entry.supervisor.event_loop import Loop

# The start waits no longer than this for answers.
PATIENCE_SECONDS = 1.5
MAX_SKEW_SECONDS = 2.0
MIN_FREE_BYTES = 1 << 30
_COLUMNS = ("host", "address", "interface", "CPUs", "GPUs", "free disk", "clock")


def look(host: Host, environment: Mapping[str, str], address: str | None) -> Message:
    """Return what this host knows of itself; `environment` is its ranks', `address` leads to it from the others."""
    disk = os.statvfs(host.paths.model)
    return {
        "group": host.resources.current_group_name,
        "cpus": int(environment["SM_NUM_CPUS"]),
        "gpus": int(environment["SM_NUM_GPUS"]),
        "free_bytes": disk.f_bavail * disk.f_frsize,
        "interface": interfaces.interface_of(host, address, interfaces.interfaces()),
        "named_interface": host.resource_config.get("network_interface_name"),
        "address": address,
    }


def check(
    names: Sequence[str],
    loop: Loop,
    tell: Callable[[Message], None],
    host: Host,
    environment: Mapping[str, str],
    address: str | None,
) -> None:
    """Look at this host and ask for names; `tell` gets what was found once all have been answered.

    The first host is to know all others; they, these names.
    """
    facts, unknown = look(host, environment, address), []
    waiting = set(host.resources.hosts if host.is_first else names) - {host.name}

    def take(name: str, known: bool) -> None:
        waiting.discard(name)
        if not known:
            unknown.append(name)
        if not waiting:
            # Only now: the first host compares it with its own clock when it arrives.
            tell({"kind": "checked", "facts": {**facts, "unknown": unknown, "wall": time.time()}})

    for name in sorted(waiting):
        # Any port will do: it is the name that is asked for.
        Question(name, 1, loop, _then(take, name))


def _then(take: Callable[[str, bool], None], name: str) -> Callable[[Target | None], None]:
    return lambda target: take(name, target is not None)


def report(hosts: Sequence[str], facts: Mapping[str, Message], skews: Mapping[str, float]) -> list[str]:
    """Return the table and the warnings; `skews` (seconds) are the hosts' clocks against the first one's.

    A host without facts has not answered in time.
    """
    rows: list[tuple[str, ...]] = [_COLUMNS]
    for host in hosts:
        own = facts.get(host)
        if own is None:
            rows.append((host, *("?" for _ in _COLUMNS[1:])))
            continue
        free, skew = f"{own['free_bytes'] / 1e9:.1f} GB", f"{round(skews[host], 1) + 0.0:+.1f} s"
        numbers = (str(own["cpus"]), str(own["gpus"]))
        rows.append((host, own["address"] or "?", own["interface"] or "?", *numbers, free, skew))
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    table = ["  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return table + [f"warning: {problem}" for problem in _problems(hosts, facts, skews)]


def master_address(master: str, facts: Mapping[str, Message]) -> str:
    """Return the name of rank 0's host, or its address where some host does not know the name.

    >>> master_address("algo-1", {"algo-1": {"address": "10.0.0.1", "unknown": []}, "algo-2": {"unknown": ["algo-1"]}})
    '10.0.0.1'
    """
    known = all(master not in own["unknown"] for own in facts.values())
    address = facts[master]["address"] if master in facts else None
    return master if known or address is None else str(address)


def _problems(hosts: Sequence[str], facts: Mapping[str, Message], skews: Mapping[str, float]) -> list[str]:
    found = []
    for host in hosts:
        own = facts.get(host)
        if own is None:
            found.append(f"{host} has not answered within {PATIENCE_SECONDS:g} s; is its name server slow?")
            continue
        if own["unknown"]:
            names = ", ".join(own["unknown"])
            found.append(f"{host} knows no address of {names}: addresses are used where names would be")
        if abs(skews[host]) > MAX_SKEW_SECONDS:
            found.append(f"the clock of {host} is {skews[host]:+.1f} s off {hosts[0]}'s: logs will seem out of order")
        if own["free_bytes"] < MIN_FREE_BYTES:
            found.append(f"{host} has {own['free_bytes'] / 1e6:.0f} MB free for the model: the disk may run full")
        named = own["named_interface"]
        if named is not None and own["interface"] != named:
            instead = own["interface"] or "none"
            found.append(f"{host} has no network interface {named!r}, which the job names; it takes {instead}")
    return found + _uneven(hosts, facts)


def _uneven(hosts: Sequence[str], facts: Mapping[str, Message]) -> list[str]:
    """Hosts of one group are of one kind; where their GPUs differ in number, one of them has a fault."""
    groups: dict[str, dict[int, list[str]]] = {}
    for host in hosts:
        if host in facts:
            own = facts[host]
            groups.setdefault(own["group"], {}).setdefault(own["gpus"], []).append(host)
    return [
        f"hosts of group {group} differ in GPUs: "
        + ", ".join(f"{count} on {' '.join(names)}" for count, names in sorted(counts.items()))
        for group, counts in groups.items()
        if len(counts) > 1
    ]
