"""The coordinator's looks at all ranks: where the ranks are, folded into one picture.

    stacks    from hosts    where a rank is; from all ranks, or after PATIENCE_SECONDS

No I/O: orders and time go through the constructor's arguments.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from herringbone_entry.watch import flight
from herringbone_entry.watch.fold import Group, Place, cut_pairs, fold, own_line, ranks_text

if TYPE_CHECKING:
    from herringbone_entry.channel.messages import Order

# Hosts look for two seconds at most.
PATIENCE_SECONDS = 3.0
# Looks that wait for answers; a client that asks more often gets no answer.
_MAX_LOOKS = 4
_MAX_GROUPS = 20
# Parts of an event, which has at most 64 KiB as ASCII.
_MAX_TEXT_BYTES, _MAX_GROUPS_BYTES = 24_000, 32_000


class Look(NamedTuple):
    """The answers of the ranks to one order `stacks`."""

    id: str
    places: dict[int, Place]
    connections: dict[int, list[Any]]
    records: dict[int, dict[str, Any]]


class Looks:
    """The looks that wait for answers; each look's `on_end` gets all that came."""

    def __init__(
        self,
        num_ranks: int,
        *,
        order: Callable[[Order], None],
        later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self._num_ranks, self._order, self._later = num_ranks, order, later
        self._waiting: dict[str, tuple[Look, Callable[[Look], None]]] = {}

    def begin(self, number: str, on_end: Callable[[Look], None]) -> None:
        """Ask all hosts where their ranks are."""
        if len(self._waiting) < _MAX_LOOKS and number not in self._waiting:
            self._waiting[number] = Look(number, {}, {}, {}), on_end
            self._order({"kind": "stacks", "id": number})
            self._later(PATIENCE_SECONDS, lambda: self._end(number))

    def take(self, _host: str, event: Any) -> None:
        """Take the answer of one rank."""
        if event["id"] not in self._waiting:
            return
        look, rank = self._waiting[event["id"]][0], event["rank"]
        key, frames, state, waits = event["place"]
        look.places[rank] = Place(tuple(key), tuple(frames), state, waits)
        look.connections[rank] = event["connections"]
        if event["record"]:
            look.records[rank] = event["record"]
        if len(look.places) >= self._num_ranks:
            self._end(look.id)

    def _end(self, number: str) -> None:
        look, on_end = self._waiting.pop(number, (None, None))
        if look is not None and on_end is not None:
            on_end(look)


class Picture:
    """The places of all ranks, folded: ranks at the same place are one group, and the odd ones come first.

    `lines` say it in the log. `why` is one sentence about the odd ranks `odd`, which wait for nobody, or are in another
    collective operation than their peers.
    """

    def __init__(self, look: Look, rank_hosts: Mapping[int, str]) -> None:
        self._id, self._rank_hosts = look.id, rank_hosts
        difference = flight.first_difference(look.records)
        missing = {} if difference is None else dict.fromkeys(difference.odd, difference.reason)
        self.groups = fold(look.places, cut_pairs(look.connections), missing)
        self.odd = [rank for group in self.groups if group.odd for rank in group.ranks]
        self.lines = [*self._lines(), *([] if difference is None else [f"stacks: {difference}"])]

    @property
    def places(self) -> list[tuple[tuple[int, ...], tuple[str, ...], str]]:
        """The groups as values: a longer standstill at the same places, for the same reason, is no news."""
        return [(group.ranks, group.place.key, group.odd) for group in self.groups]

    @property
    def why(self) -> str:
        """Say in one sentence where the odd rank is and where the others are."""
        odd = [group for group in self.groups if group.odd] or self.groups[:1]
        parts = [f"{self._named(group)} at {own_line(group.place)}" for group in odd[:3]]
        if odd[0].odd:
            parts[-1] += f": {odd[0].odd}"
        others = [group for group in self.groups if group not in odd]
        if others:
            parts.append(f"{ranks_text(others[0].ranks)} at {own_line(others[0].place)}")
        return "; ".join(parts)

    def event(self, why: str, lines: list[str]) -> dict[str, Any]:
        """Return the members of the event `stacks`."""
        groups = _fitting(self._group(group) for group in self.groups[:_MAX_GROUPS])
        return {"id": self._id, "why": why, "text": _cut("\n".join(lines), _MAX_TEXT_BYTES), "groups": groups}

    def _lines(self) -> list[str]:
        lines = []
        for group in self.groups[:_MAX_GROUPS]:
            state = f", {group.place.state}" if group.place.state else ""
            reason = f": {group.odd}" if group.odd else ""
            lines.append(f"stacks: {self._named(group)}{state}{reason}")
            lines += [f"stacks:     {frame}" for frame in group.place.frames or ("no Python stack",)]
        if len(self.groups) > _MAX_GROUPS:
            lines.append(f"stacks: and {len(self.groups) - _MAX_GROUPS} more places")
        absent = sorted(self._rank_hosts.keys() - {rank for group in self.groups for rank in group.ranks})
        if absent:
            lines.append(f"stacks: {ranks_text(absent)}: no answer within {PATIENCE_SECONDS:g} s")
        return lines

    def _named(self, group: Group) -> str:
        hosts = self._hosts(group)
        shown = ", ".join(hosts[:3]) + (f" and {len(hosts) - 3} more" if len(hosts) > 3 else "")
        return f"{ranks_text(group.ranks)} ({shown})"

    def _hosts(self, group: Group) -> list[str]:
        return sorted({self._rank_hosts[rank] for rank in group.ranks if rank in self._rank_hosts})

    def _group(self, group: Group) -> dict[str, Any]:
        return {
            "ranks": list(group.ranks),
            "hosts": self._hosts(group),
            "odd": bool(group.odd),
            "why": group.odd,
            "state": group.place.state,
            "frames": list(group.place.frames),
        }


def _cut(text: str, limit: int) -> str:
    """Return as many of a text's first characters as fit into `limit` bytes of JSON."""
    while len(json.dumps(text)) > limit:
        text = text[: len(text) * 3 // 4]
    return text


def _fitting(groups: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return as many of the first groups as fit into an event."""
    kept, size = [], 0
    for group in groups:
        size += len(json.dumps(group))
        if size > _MAX_GROUPS_BYTES:
            break
        kept.append(group)
    return kept
