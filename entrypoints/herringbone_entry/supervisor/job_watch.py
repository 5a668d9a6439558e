"""The coordinator's part in watching the job: it finds a hang, and a rank that keeps the others waiting.

What it finds is reported; `on_fault` then decides whether the job goes on.

    moved          from hosts     how long no rank of the host has moved; all of them long enough: a hang
    stacks_wanted  from a host    a client asks where the ranks are
    stacks         from hosts     where a rank is; from all ranks, or after PATIENCE_SECONDS: folded and printed
    checksum       from hosts     what a rank's parameters add up to, to compare replicas
    loss           from hosts     a loss is wrong; the first of each kind counts
    unused         from hosts     how long its devices have not been used; on all hosts: an idle job
    record         from hosts     the last collective operations of a rank that has failed

Stragglers have a file of their own, `straggler_watch`. It does no I/O but look at a clock: orders have the first host
print its results, as lines of the log and as events.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from herringbone_contract.failure import Failure
from herringbone_entry.supervisor.straggler_watch import StragglerWatch
from herringbone_entry.watch import flight
from herringbone_entry.watch.fold import Group, Place, cut_pairs, fold, own_line, ranks_text
from herringbone_entry.watch.idleness import JobIdleness
from herringbone_entry.watch.replicas import Replicas
from herringbone_entry.watch.standstill import Standstill

if TYPE_CHECKING:
    from herringbone_entry.channel.messages import Order

# Hosts look for two seconds at most.
PATIENCE_SECONDS = 3.0
# Looks that wait for answers; a client that asks more often gets no answer.
_MAX_LOOKS = 4
_MAX_GROUPS = 20
# The id of the look at a job that fails.
_FAILURE = "failure"
# A part of the messages of gloo ("Timed out waiting 1800000ms") and NCCL's watchdog ("... ran for 600000 milliseconds
# before timing out"), in small letters.
_TIMED_OUT = ("timed out", "timing out")
# Parts of an event, which has at most 64 KiB as ASCII.
_MAX_TEXT_BYTES, _MAX_GROUPS_BYTES = 24_000, 32_000


class Look(NamedTuple):
    """The answers of the ranks to one order `stacks`. `quiet` (seconds) is None when a client asked."""

    id: str
    quiet: float | None
    limit: float
    places: dict[int, Place]
    connections: dict[int, list[Any]]
    records: dict[int, dict[str, Any]]


class JobWatch:
    """Watches the whole job; `rank_hosts` has the host of each rank, and `first` is the host that prints."""

    def __init__(
        self,
        first: str,
        rank_hosts: Mapping[int, str],
        *,
        order: Callable[[Order], None],
        later: Callable[[float, Callable[[], None]], object],
        on_fault: Callable[[str, Failure], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._first, self._rank_hosts = first, rank_hosts
        self._order, self._later, self._on_fault = order, later, on_fault
        # Whether a standstill would be seen: the user gave the limit, or ranks show their steps or collectives.
        self._is_sure = False
        self._standstill: Standstill | None = None
        self._idleness: JobIdleness | None = None
        self._losses = set[str]()
        self._replicas, self._is_told_alone = Replicas(list(rank_hosts)), False
        self._stragglers = StragglerWatch(
            rank_hosts,
            first=first,
            order=order,
            later=lambda seconds, act: later(seconds, lambda: self._guarded(act)),
            clock=clock,
            on_fault=on_fault,
        )
        self._looks: dict[str, Look] = {}
        self._num_looks = 0
        # The groups at the last hang: a longer standstill at the same places, for the same reason, is no news.
        self._reported: list[tuple[tuple[int, ...], tuple[str, ...], str]] = []
        # The flight records of ranks that have failed, and of those that lived then, with the places of the latter.
        self._records: dict[int, dict[str, Any]] = {}
        self._places: dict[int, Place] = {}
        self._handlers: dict[str, Callable[[str, Any], None]] = {
            "moved": self._moved,
            "record": self._record,
            "stacks": self._stacks,
            "stacks_wanted": self._stacks_wanted,
            "steps": self._steps,
            "clock": self._stragglers.clock,
            "times": self._stragglers.times,
            "unused": self._unused,
            "loss": self._loss,
            "checksum": self._checksum,
        }

    def receive(self, host: str, event: Any) -> None:
        """Take an event from a host."""
        self._guarded(lambda: self._handlers[event["kind"]](host, event))

    def _guarded(self, act: Callable[[], None]) -> None:
        """Do something with the content of messages, some of which comes from scripts: it may be anything."""
        try:
            act()
        except Exception as error:  # noqa: BLE001 - a look at a job must not end it
            text = f"stacks: not known: {type(error).__name__}: {error}"
            self._order({"kind": "say", "host": self._first, "text": text})

    def _moved(self, host: str, event: Any) -> None:
        if self._standstill is None:
            self._standstill = Standstill(set(self._rank_hosts.values()), float(event["limit"]))
        self._is_sure = self._is_sure or event["is_chosen"]
        idle = {int(rank): float(seconds) for rank, seconds in event["idle"].items()}
        quiet = self._standstill.take(host, float(event["quiet"]), idle, is_starved=event["is_starved"])
        if quiet is None:
            return
        if quiet < 2 * float(event["limit"]):
            # The ranks have moved since the last hang, so the same places would be news.
            self._reported = []
        self._num_looks += 1
        self._look(f"hang-{self._num_looks}", quiet, float(event["limit"]))

    def _unused(self, host: str, event: Any) -> None:
        limit = float(event["limit"])
        if self._idleness is None:
            self._idleness = JobIdleness(set(self._rank_hosts.values()), limit)
        idle = self._idleness.take(host, float(event["seconds"]), float(event["covers"]), time.monotonic())
        if idle is None:
            return
        what = f"none of its {event['what']} has been used for {idle:.0f} s, and idle_timeout is {limit:g} s"
        if not idle:
            what = "its devices are used again"
        self._order({"kind": "say", "host": self._first, "text": f"idle: {what}"})
        self._emit({"kind": "idle", "seconds": idle, "limit": limit, "ends": idle >= limit, "what": what})

    def _loss(self, host: str, event: Any) -> None:
        fault = str(event["fault"])
        # The other ranks sum the same gradients, so one is named.
        if fault not in self._losses:
            self._losses.add(fault)
            self._tell(fault, host, event["rank"], event["text"])

    def _checksum(self, _host: str, event: Any) -> None:
        for found in self._replicas.take(int(event["rank"]), int(event["step"]), str(event["value"])):
            others = f"those of {ranks_text(found.others)}" if found.others else "each other"
            what = f"the parameters of {ranks_text(found.ranks)} have other bits than {others} after step {found.step}"
            hosts = {self._rank_hosts[rank] for rank in found.ranks}
            self._tell("replica_mismatch", hosts.pop() if len(hosts) == 1 else None, found.ranks[0], what)
        if self._replicas.alone and not self._is_told_alone:
            self._is_told_alone = True
            text = "check_replicas_every: no two ranks have the same parameters, so there is nothing to compare"
            self._order({"kind": "say", "host": self._first, "text": text})

    def _tell(self, fault: str, host: str | None, rank: int | None, what: str) -> None:
        """Say a fault that words alone describe, and have it answered."""
        where = "" if rank is None else f"rank {rank} "
        text = f"{fault}: {where}({host}): {what}" if host else f"{fault}: {what}"
        self._order({"kind": "say", "host": self._first, "text": text})
        self._emit({"kind": "fault", "fault": fault, "rank": rank, "why": what})
        self._on_fault(fault, Failure(host, rank if host else None, message=text))

    def _stacks_wanted(self, _host: str, event: Any) -> None:
        self._look(str(event["id"])[:64], None, 0.0)

    def _record(self, _host: str, event: Any) -> None:
        self._records[event["rank"]] = event["record"]

    def look_at_failure(self, failure: Failure) -> bool:
        """Look at the ranks that live if a collective operation has timed out; return whether it has."""
        texts = (failure.message, *failure.log_tail)
        if not self._records or not any(words in text.lower() for text in texts for words in _TIMED_OUT):
            return False
        self._look(_FAILURE, None, 0.0)
        return True

    def explain(self, failure: Failure) -> None:
        """Print the first collective operation that differs between ranks, unless the failed rank only missed it."""
        self._guarded(lambda: self._explain(failure))

    def _explain(self, failure: Failure) -> None:
        difference = flight.first_difference(self._records)
        if difference is None or failure.rank in difference.missing:
            return
        lines = [f"stacks: {difference}"]
        for rank in difference.missing:
            if rank in self._places:
                lines.append(f"stacks: rank {rank} ({self._rank_hosts[rank]}) at {own_line(self._places[rank])}")
        self._order({"kind": "say", "host": self._first, "text": "\n".join(lines)})

    def _look(self, number: str, quiet: float | None, limit: float) -> None:
        if len(self._looks) >= _MAX_LOOKS or number in self._looks:
            return
        self._looks[number] = Look(number, quiet, limit, {}, {}, {})
        self._order({"kind": "stacks", "id": number})
        self._later(PATIENCE_SECONDS, lambda: self._guarded(lambda: self._end(number)))

    def _stacks(self, _host: str, event: Any) -> None:
        look, rank = self._looks.get(event["id"]), event["rank"]
        if look is None:
            return
        key, frames, state, waits = event["place"]
        look.places[rank] = Place(tuple(key), tuple(frames), state, waits)
        look.connections[rank] = event["connections"]
        if event["record"]:
            look.records[rank] = event["record"]
        if look.places.keys() >= self._rank_hosts.keys():
            self._end(look.id)

    def _end(self, number: str) -> None:
        look = self._looks.pop(number, None)
        if look is None:
            return
        if number == _FAILURE:
            self._records.update(look.records)
            self._places = look.places
            return
        ages = [float(record["age"]) for record in look.records.values()]
        if look.quiet is not None:
            assert self._standstill is not None, "only a standstill looks with a limit"
            waiting = [rank for rank, place in look.places.items() if place.waits]
            if self._standstill.at_work(look.quiet, waiting):
                ages.append(look.limit / 2)
            if ages and min(ages) < look.limit:
                # Silent ranks that begin collectives are at work.
                self._standstill.excuse(look.quiet, min(ages))
                return
        difference = flight.first_difference(look.records)
        missing = {} if difference is None else dict.fromkeys(difference.odd, difference.reason)
        groups = fold(look.places, cut_pairs(look.connections), missing)
        lines = [*self._lines(groups), *([] if difference is None else [f"stacks: {difference}"])]
        odd = [rank for group in groups if group.odd for rank in group.ranks]
        if look.quiet is not None:
            places = [(group.ranks, group.place.key, group.odd) for group in groups]
            if places == self._reported:
                return
            self._reported = places
            why = self._why(groups)
            lines.insert(0, f"hang: no line, metric or collective of any rank for {look.quiet:.0f} s: {why}")
            self._emit({"kind": "hang", "since": look.quiet, "why": why, "ranks": odd})
        self._order({"kind": "say", "host": self._first, "text": "\n".join(lines)})
        self._emit(
            {
                "kind": "stacks",
                "id": look.id,
                "why": "request" if look.quiet is None else "hang",
                "text": _cut("\n".join(lines), _MAX_TEXT_BYTES),
                "groups": _fitting(self._group(group) for group in groups[:_MAX_GROUPS]),
            }
        )
        if look.quiet is not None:
            self._end_hang(lines[0], odd, is_seen=bool(look.records))

    def _end_hang(self, text: str, odd: list[int], *, is_seen: bool) -> None:
        """Report a hang as a fault once its lines are on their way; not where work may go on that nobody can see."""
        if not (self._is_sure or is_seen):
            text = "the job goes on: neither steps nor collective operations are seen here; hang_timeout has it ended"
            self._order({"kind": "say", "host": self._first, "text": text})
            return
        hosts = {self._rank_hosts[rank] for rank in odd if rank in self._rank_hosts}
        [host] = hosts if len(hosts) == 1 else [None]
        self._on_fault("hang", Failure(host, odd[0] if len(odd) == 1 else None, message=text))

    def _why(self, groups: list[Group]) -> str:
        """Say in one sentence where the odd rank is and where the others are."""
        odd = [group for group in groups if group.odd] or groups[:1]
        parts = [f"{self._named(group)} at {own_line(group.place)}" for group in odd[:3]]
        if odd[0].odd:
            parts[-1] += f": {odd[0].odd}"
        others = [group for group in groups if group not in odd]
        if others:
            parts.append(f"{ranks_text(others[0].ranks)} at {own_line(others[0].place)}")
        return "; ".join(parts)

    def _named(self, group: Group) -> str:
        hosts = sorted({self._rank_hosts[rank] for rank in group.ranks if rank in self._rank_hosts})
        shown = ", ".join(hosts[:3]) + (f" and {len(hosts) - 3} more" if len(hosts) > 3 else "")
        return f"{ranks_text(group.ranks)} ({shown})"

    def _lines(self, groups: list[Group]) -> list[str]:
        lines = []
        for group in groups[:_MAX_GROUPS]:
            state = f", {group.place.state}" if group.place.state else ""
            reason = f": {group.odd}" if group.odd else ""
            lines.append(f"stacks: {self._named(group)}{state}{reason}")
            lines += [f"stacks:     {frame}" for frame in group.place.frames or ("no Python stack",)]
        if len(groups) > _MAX_GROUPS:
            lines.append(f"stacks: and {len(groups) - _MAX_GROUPS} more places")
        absent = sorted(self._rank_hosts.keys() - {rank for group in groups for rank in group.ranks})
        if absent:
            lines.append(f"stacks: {ranks_text(absent)}: no answer within {PATIENCE_SECONDS:g} s")
        return lines

    def _group(self, group: Group) -> dict[str, Any]:
        return {
            "ranks": list(group.ranks),
            "hosts": sorted({self._rank_hosts[rank] for rank in group.ranks if rank in self._rank_hosts}),
            "odd": bool(group.odd),
            "why": group.odd,
            "state": group.place.state,
            "frames": list(group.place.frames),
        }

    def _steps(self, host: str, event: Any) -> None:
        self._is_sure = self._is_sure or bool(event["seconds"])
        self._stragglers.steps(host, event)

    def _emit(self, event: dict[str, Any]) -> None:
        self._order({"kind": "emit", "host": self._first, "event": event})


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
