"""Checks before machines start a job together: names that resolve, clocks and GPUs that agree, disks with room.

[1] Each host looks at itself and resolves the names that it will need (`check`).
[2] The first host makes a table of the facts, with a warning for each thing that may go wrong later (`report`).
[3] It decides by which address the ranks call rank 0's host (`master_address`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from herringbone_entry.channel import interfaces
from herringbone_entry.channel.address import NameLookup, ResolvedAddress
from herringbone_entry.host import Host
from herringbone_entry.host_context import HostContext

if TYPE_CHECKING:
    from herringbone_entry.channel.messages import Facts

# The start waits no longer than this for answers.
PATIENCE_SECONDS = 1.5
_COLUMNS = ("host", "address", "interface", "CPUs", "GPUs", "free disk", "clock")


def look(host: Host, environment: Mapping[str, str], address: str | None) -> Facts:
    """Return the facts of this host; `environment` is its ranks', `address` is its own as the others see it."""
    # The model's folder: results that do not fit are lost at the end of the job.
    disk = os.statvfs(host.paths.model)
    return {
        "group": host.resources.current_group_name,
        "machine": _machine(),
        "cpus": int(environment["SM_NUM_CPUS"]),
        "gpus": int(environment["SM_NUM_GPUS"]),
        "free_bytes": disk.f_bavail * disk.f_frsize,
        "interface": interfaces.interface_of(host, address, interfaces.interfaces()),
        "named_interface": host.resource_config.get("network_interface_name"),
        "address": address,
        "wall": time.time(),
        "unknown": [],
        "known": {},
    }


def _machine() -> str:
    # The kernel makes this number at its start. Containers share their machine's kernel.
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def check(names: Sequence[str], context: HostContext, environment: Mapping[str, str], address: str | None) -> None:
    """Look at this host, resolve names, and report the facts once each name has an answer.

    The first host resolves the names of all others; each other host resolves `names`.
    """
    host = context.host
    facts = look(host, environment, address)
    # mpirun on the first host calls all others by name; the others only call the first host and rank 0's.
    waiting = set(host.resources.hosts if host.is_first else names) - {host.name}

    def note(name: str, resolved: ResolvedAddress | None) -> None:
        waiting.discard(name)
        if resolved is None:
            facts["unknown"].append(name)
        else:
            facts["known"][name] = str(resolved.address[0])
        if not waiting:
            # As late as possible: the first host compares this clock with its own when the message arrives.
            facts["wall"] = time.time()
            context.report({"kind": "checked", "ask": "look", "report": facts})

    for name in sorted(waiting):
        # Any port will do: only the name's address matters.
        NameLookup(name, 1, context.loop, _then(note, name))


def _then(note: Callable[[str, ResolvedAddress | None], None], name: str) -> Callable[[ResolvedAddress | None], None]:
    # A function of its own, because a lambda in the loop would see the loop's last name.
    return lambda resolved: note(name, resolved)


def report(hosts: Sequence[str], facts: Mapping[str, Facts], skews: Mapping[str, float]) -> list[str]:
    """Return the table and the warnings; `skews` (seconds) are the hosts' clocks against the first host's.

    A host without facts did not answer in time.
    """
    rows: list[tuple[str, ...]] = [_COLUMNS]
    for name in hosts:
        host = facts.get(name)
        if host is None:
            rows.append((name, *("?" for _ in _COLUMNS[1:])))
            continue
        # Adding 0.0 turns -0.0 into 0.0: a table with "-0.0 s" looks like a problem.
        free, skew = f"{host['free_bytes'] / 1e9:.1f} GB", f"{round(skews[name], 1) + 0.0:+.1f} s"
        numbers = (str(host["cpus"]), str(host["gpus"]))
        rows.append((name, host["address"] or "?", host["interface"] or "?", *numbers, free, skew))
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    table = ["  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return table + [f"warning: {problem}" for problem in _problems(hosts, facts)]


def master_address(master: str, facts: Mapping[str, Facts]) -> str:
    """Return the name of rank 0's host, or its address if some host does not know the name.

    >>> master_address("algo-1", {"algo-1": {"address": "10.0.0.1", "unknown": []}, "algo-2": {"unknown": ["algo-1"]}})
    '10.0.0.1'
    """
    known = all(master not in host["unknown"] for host in facts.values())
    address = facts[master]["address"] if master in facts else None
    return master if known or address is None else str(address)


def listen_address(master: str, others: Sequence[str], facts: Mapping[str, Facts]) -> str:
    """Return the address of rank 0's host if all other hosts with ranks reach it there; else an empty text.

    >>> facts = {"algo-1": {"address": "10.0.0.1"}, "algo-2": {"known": {"algo-1": "10.0.0.1"}}}
    >>> listen_address("algo-1", ["algo-2"], facts)
    '10.0.0.1'
    """
    address = facts[master]["address"] if master in facts else None
    # Without the name, they are given the address itself: see `master_address`.
    reached = {facts[host]["known"].get(master, address) if host in facts else None for host in others}
    return address if address is not None and reached <= {address} else ""


def _problems(hosts: Sequence[str], facts: Mapping[str, Facts]) -> list[str]:
    problems = []
    for name in hosts:
        host = facts.get(name)
        if host is None:
            problems.append(f"{name} has not answered within {PATIENCE_SECONDS:g} s; is its name server slow?")
            continue
        # A host that has reported its address is called by that, where no name server knows its name.
        if unknown := [other for other in host["unknown"] if other not in facts or not facts[other]["address"]]:
            problems.append(
                f"{name} finds no address of {', '.join(unknown)}: no name server knows the name, and the host has "
                "reported no address; ranks that call it will fail"
            )
        named = host["named_interface"]
        if named is not None and host["interface"] != named:
            instead = host["interface"] or "none"
            problems.append(f"{name} has no network interface {named!r}, which the job names; it takes {instead}")
    return problems + _uneven(hosts, facts)


def _uneven(hosts: Sequence[str], facts: Mapping[str, Facts]) -> list[str]:
    """Return a warning for each group whose hosts differ in GPUs: they are of one kind, so one of them has a fault."""
    groups: dict[str, dict[int, list[str]]] = {}
    for name in hosts:
        if name in facts:
            host = facts[name]
            groups.setdefault(host["group"], {}).setdefault(host["gpus"], []).append(name)
    return [
        f"hosts of group {group} differ in GPUs: "
        + ", ".join(f"{count} on {' '.join(names)}" for count, names in sorted(counts.items()))
        for group, counts in groups.items()
        if len(counts) > 1
    ]
