"""Say why a rank is slower than the others, by what its host's observer has seen. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from herringbone_entry.watch.stragglers import RATIO, median

# A wait explains a slow rank when it takes this share of the time more than in the other ranks.
_SHARE = 0.1
_TRACE = 0.01
# Readings meet a wait for a disk by chance.
_DISK_SHARE = 0.2
_SWAPPED_PAGES = 20.0


def cause(facts: Mapping[str, Any], others: Sequence[Mapping[str, Any]], excess: float) -> str:
    """Return the reason of a slow rank in words, "" where nothing tells; `others` are the facts of the other ranks.

    `excess` is the part of the rank's time that it needs more than the others: a wait explains it, or half of it.

    >>> cause({"cpu": 0.3, "throttled": 0.6}, [{"cpu": 0.5}, {"cpu": 0.5}], excess=0.4)
    'its control group limits its CPU time, in 60 % of the time'

    Facts are the means of `ranks` in samples (`events.format`), and `slowed` of its GPU.
    """
    if not facts or not others:
        return ""
    least = max(_SHARE, excess / 2)

    def more(name: str) -> float:
        return float(facts.get(name, 0.0)) - median([float(other.get(name, 0.0)) for other in others])

    def share(*names: str) -> str:
        return f"in {min(1.0, max(facts.get(name, 0.0) for name in names)) * 100:.0f} % of the time"

    # Linux 6.18 counts a part of the time in the group's own file, and all of it as a wait for a core.
    if more("throttled") > least or (more("throttled") > _TRACE and more("cores") > least):
        return f"its control group limits its CPU time, {share('throttled', 'cores')}"
    if more("swapped") > _SWAPPED_PAGES:
        return f"it reads {facts['swapped']:.0f} pages a second back from swap"
    if more("disk") > max(_DISK_SHARE, least):
        return f"it waits for a disk, {share('disk')}"
    # A rank that computes more waits for cores longer, too, and on a busy machine all ranks wait: its time is the
    # product of what it computes and of how others stretch that, and the greater factor is the cause.
    stretched = _stretch(facts) / median([_stretch(other) for other in others])
    computes = _cpu(facts) / median([_cpu(other) for other in others])
    if more("cores") > least and stretched > max(RATIO, computes):
        return f"other processes use its cores, {share('cores')}"
    if facts.get("slowed") and sum(bool(other.get("slowed")) for other in others) * 2 < len(others):
        return f"its GPU has lowered its clock because of {facts['slowed']}"
    usual = median([_wanted(other) for other in others])
    if _wanted(facts) - usual > least:
        return f"it computes more: it could use {_wanted(facts):.2f} cores, the others {usual:.2f}"
    if _wanted(facts) < 1 - _SHARE:
        return "it waits and uses no CPU meanwhile: a sleep, a lock, the network"
    return ""


def _wanted(facts: Mapping[str, Any]) -> float:
    """Return the cores that a rank used, or would have used if they had been free."""
    return float(facts.get("cpu", 0.0)) + float(facts.get("cores", 0.0))


def _cpu(facts: Mapping[str, Any]) -> float:
    # A rank that waits uses next to nothing.
    return max(float(facts.get("cpu", 0.0)), 0.01)


def _stretch(facts: Mapping[str, Any]) -> float:
    """Return how many times as long a rank's computing takes as on cores of its own."""
    return 1 + float(facts.get("cores", 0.0)) / _cpu(facts)
