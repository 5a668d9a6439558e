"""The coordinator's part in watching the job: it finds a hang, and other faults in what hosts and ranks report.

What it finds is told; `on_fault` then decides whether the job goes on.

    moved          from hosts     how long no rank of the host has moved; all of them long enough: a hang
    stacks_wanted  from a host    a client asks where the ranks are
    checksum       from hosts     what a rank's parameters add up to, to compare replicas
    loss           from hosts     a loss is wrong; of each kind, the earliest step counts
    unused         from hosts     how long its devices have not been used; on all hosts: an idle job
    record         from hosts     the last collective operations of a rank that has failed

Looks at the ranks have a file of their own, `looks`, and stragglers `straggler_watch`. It does no I/O but look at a
clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from herringbone_contract.failure import Failure
from herringbone_contract.faults.bad_steps import BadSteps, parse_bad_steps
from herringbone_entry.supervisor.watching.looks import Look, Looks, Picture
from herringbone_entry.supervisor.watching.printer import Printer
from herringbone_entry.supervisor.watching.straggler_watch import StragglerWatch
from herringbone_entry.watch import flight
from herringbone_entry.watch.fold import Place, own_line, ranks_text
from herringbone_entry.watch.idleness import JobIdleness
from herringbone_entry.watch.replicas import Replicas
from herringbone_entry.watch.standstill import Standstill

if TYPE_CHECKING:
    from herringbone_entry.channel.messages import Order

# The id of the look at a job that fails.
_FAILURE = "failure"
# A part of the messages of gloo ("Timed out waiting 1800000ms") and NCCL's watchdog ("... ran for 600000 milliseconds
# before timing out"), in small letters.
_TIMED_OUT = ("timed out", "timing out")
# Observers send metrics once a second.
_LOSS_SECONDS = 1.5


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
        self._rank_hosts, self._on_fault, self._clock = rank_hosts, on_fault, clock
        self._printer = Printer(first, order)
        # Whether a standstill would be seen: the user gave the limit, or ranks show their steps or collectives.
        self._is_sure = False
        self._standstill: Standstill | None = None
        self._idleness: JobIdleness | None = None
        # The report of the earliest step, by kind of fault.
        self._losses: dict[str, tuple[str, Any]] = {}
        self._replicas, self._is_told_alone = Replicas(list(rank_hosts)), False

        def guarded(seconds: float, act: Callable[[], None]) -> object:
            return later(seconds, lambda: self._guarded(act))

        self._later = guarded
        self._looks = Looks(len(rank_hosts), order=order, later=guarded)
        self._stragglers = StragglerWatch(
            rank_hosts, printer=self._printer, order=order, later=guarded, clock=clock, on_fault=on_fault
        )
        self._num_hangs = 0
        # The places at the last hang.
        self._reported: list[Any] = []
        # The flight records of ranks that have failed, and of those that lived then, with the places of the latter.
        self._records: dict[int, dict[str, Any]] = {}
        self._places: dict[int, Place] = {}
        self._handlers: dict[str, Callable[[str, Any], None]] = {
            "moved": self._moved,
            "record": self._record,
            "stacks": self._looks.take,
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

    def look_at_failure(self, failure: Failure) -> bool:
        """Look at the ranks that live if a collective operation has timed out; return whether it has."""
        texts = (failure.message, *failure.log_tail)
        if not self._records or not any(words in text.lower() for text in texts for words in _TIMED_OUT):
            return False
        self._looks.begin(_FAILURE, self._keep)
        return True

    def explain(self, failure: Failure) -> None:
        """Print the first collective operation that differs between ranks, unless the failed rank only missed it."""
        self._guarded(lambda: self._explain(failure))

    def _guarded(self, act: Callable[[], None]) -> None:
        """Do something with the content of messages, some of which comes from scripts: it may be anything."""
        try:
            act()
        except Exception as error:  # noqa: BLE001 - a look at a job must not end it
            self._printer.say(f"stacks: not known: {type(error).__name__}: {error}")

    # Hangs

    def _moved(self, host: str, event: Any) -> None:
        limit = float(event["limit"])
        if self._standstill is None:
            self._standstill = Standstill(set(self._rank_hosts.values()), limit)
        standstill = self._standstill
        self._is_sure = self._is_sure or event["is_chosen"]
        idle = {int(rank): float(seconds) for rank, seconds in event["idle"].items()}
        quiet = standstill.take(host, float(event["quiet"]), idle, is_starved=event["is_starved"])
        if quiet is None:
            return
        if quiet < 2 * limit:
            # The ranks have moved since the last hang, so the same places would be news.
            self._reported = []
        self._num_hangs += 1
        self._looks.begin(f"hang-{self._num_hangs}", lambda look: self._judge(look, standstill, quiet, limit))

    def _judge(self, look: Look, standstill: Standstill, quiet: float, limit: float) -> None:
        """Tell a hang, unless the look shows ranks at work."""
        ages = [float(record["age"]) for record in look.records.values()]
        if standstill.at_work(quiet, [rank for rank, place in look.places.items() if place.waits]):
            ages.append(limit / 2)
        if ages and min(ages) < limit:
            # Silent ranks that begin collectives are at work.
            standstill.excuse(quiet, min(ages))
            return
        picture = Picture(look, self._rank_hosts)
        if picture.places == self._reported:
            return
        self._reported = picture.places
        text = f"hang: no line, metric or collective of any rank for {quiet:.0f} s: {picture.why}"
        self._printer.emit("hang", since=quiet, why=picture.why, ranks=picture.odd)
        self._show(picture, "hang", [text, *picture.lines])
        if not (self._is_sure or look.records):
            self._printer.say(
                "the job goes on: neither steps nor collective operations are seen here; hang_timeout has it ended"
            )
            return
        hosts = {self._rank_hosts[rank] for rank in picture.odd if rank in self._rank_hosts}
        rank = picture.odd[0] if len(picture.odd) == 1 else None
        self._on_fault("hang", Failure(hosts.pop() if len(hosts) == 1 else None, rank, message=text))

    def _steps(self, host: str, event: Any) -> None:
        self._is_sure = self._is_sure or bool(event["seconds"])
        self._stragglers.steps(host, event)

    # Looks that a client or a failure asks for

    def _stacks_wanted(self, _host: str, event: Any) -> None:
        self._looks.begin(str(event["id"])[:64], self._show_look)

    def _show_look(self, look: Look) -> None:
        picture = Picture(look, self._rank_hosts)
        self._show(picture, "request", picture.lines)

    def _show(self, picture: Picture, why: str, lines: list[str]) -> None:
        self._printer.say("\n".join(lines))
        self._printer.emit("stacks", **picture.event(why, lines))

    def _record(self, _host: str, event: Any) -> None:
        self._records[event["rank"]] = event["record"]

    def _keep(self, look: Look) -> None:
        self._records.update(look.records)
        self._places = look.places

    def _explain(self, failure: Failure) -> None:
        difference = flight.first_difference(self._records)
        if difference is None or failure.rank in difference.missing:
            return
        lines = [f"stacks: {difference}"]
        for rank in difference.missing:
            if rank in self._places:
                lines.append(f"stacks: rank {rank} ({self._rank_hosts[rank]}) at {own_line(self._places[rank])}")
        self._printer.say("\n".join(lines))

    # Faults that words alone describe

    def _unused(self, host: str, event: Any) -> None:
        limit = float(event["limit"])
        if self._idleness is None:
            self._idleness = JobIdleness(set(self._rank_hosts.values()), limit)
        idle = self._idleness.take(host, float(event["seconds"]), float(event["covers"]), self._clock())
        if idle is None:
            return
        what = f"none of its {event['what']} has been used for {idle:.0f} s, and idle_timeout is {limit:g} s"
        if not idle:
            what = "its devices are used again"
        self._printer.say(f"idle: {what}")
        self._printer.emit("idle", seconds=idle, limit=limit, ends=idle >= limit, what=what)
        if idle >= limit:
            self._on_fault("idle", Failure(None, None, message=f"idle: {what}"))

    def _loss(self, host: str, event: Any) -> None:
        """Take the report of a wrong loss: ranks that sum the same gradients send theirs within a moment."""
        fault = str(event["fault"])
        if fault not in self._losses:
            self._losses[fault] = host, event
            self._later(_LOSS_SECONDS if len(self._rank_hosts) > 1 else 0.0, lambda: self._tell_loss(fault))
        elif _end_of(event) < _end_of(self._losses[fault][1]):
            # A rank whose own data is bad sends the wrong loss one step before all others.
            self._losses[fault] = host, event

    def _tell_loss(self, fault: str) -> None:
        host, event = self._losses[fault]
        self._tell(fault, host, event["rank"], event["text"], parse_bad_steps(event.get("bad")))

    def _checksum(self, _host: str, event: Any) -> None:
        for found in self._replicas.take(int(event["rank"]), int(event["step"]), str(event["value"])):
            others = f"those of {ranks_text(found.others)}" if found.others else "each other"
            what = f"the parameters of {ranks_text(found.ranks)} have other bits than {others} after step {found.step}"
            hosts = {self._rank_hosts[rank] for rank in found.ranks}
            self._tell("replica_mismatch", hosts.pop() if len(hosts) == 1 else None, found.ranks[0], what)
        if self._replicas.alone and not self._is_told_alone:
            self._is_told_alone = True
            self._printer.say(
                "check_replicas_every: no two ranks have the same parameters, so there is nothing to compare"
            )

    def _tell(self, fault: str, host: str | None, rank: int | None, what: str, bad: BadSteps | None = None) -> None:
        """Say a fault and have it answered."""
        where = "" if rank is None else f"rank {rank} "
        text = f"{fault}: {where}({host}): {what}" if host else f"{fault}: {what}"
        self._printer.say(text)
        self._printer.emit("fault", fault=fault, rank=rank, why=what)
        self._on_fault(fault, Failure(host, rank if host else None, message=text, bad=bad))


def _end_of(event: Any) -> float:
    """Return the step behind a wrong loss, as a number that is the greatest where nobody knows it."""
    bad = parse_bad_steps(event.get("bad"))
    return float("inf") if bad is None or bad.end is None else bad.end
