"""Decide whose memory keeps a copy, and how often a training saves into memory. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

# The share of the time for which a training may wait for saves into memory.
BLOCKED_SHARE = 0.01


def neighbours(hosts: Sequence[str], domains: Mapping[str, str]) -> dict[str, str]:
    """Return for each host the one that keeps its copies; nothing for a single host.

    >>> neighbours(["a", "b", "c", "d"], {"a": "rack-1", "b": "rack-1", "c": "rack-2", "d": "rack-2"})
    {'a': 'c', 'b': 'd', 'c': 'a', 'd': 'b'}

    Each host keeps the copies of exactly one other. A host without a label is a failure domain of its own. A neighbour
    is of another domain wherever the greatest domain has at most half of the hosts.
    """
    if len(hosts) < 2:
        return {}
    members: dict[str, list[str]] = {}
    for host in hosts:
        members.setdefault(domains.get(host) or f"\0{host}", []).append(host)
    ordered = [host for domain in members.values() for host in domain]
    # A shift by the greatest domain leads out of every domain, unless it comes round to that domain's own begin.
    shift = max(map(len, members.values())) % len(hosts) or 1
    neighbour = {host: ordered[(place + shift) % len(hosts)] for place, host in enumerate(ordered)}
    return {host: neighbour[host] for host in hosts}


def interval(blocked: float, step: float, current: int = 0) -> int:
    """Return after how many steps to save, when a save blocks for `blocked` seconds and a step takes `step`.

    >>> interval(0.004, 0.1), interval(0.0045, 0.1, current=5), interval(0.0024, 0.1, current=5)
    (4, 5, 3)

    A `current` interval that keeps the share stays until half of it would do, so that noise does not change it.
    """
    wanted = max(1, math.ceil(blocked / (BLOCKED_SHARE * step))) if step > 0 else max(current, 1)
    return wanted if wanted > current or 2 * wanted <= current + 1 else current
