"""The coordinator's part in finding stragglers; `supervisor.watching.host_steps` is the hosts'.

    steps      from hosts    step times of libraries that count their steps
    clock      from hosts    the answer to the order `clock`: this host's time
    times      from hosts    when a rank entered the collective operations of its last steps, and what it waited for

A look asks all hosts at the same moment: a rank's look holds the rank up, and all ranks wait for each other anyway. It
is a few round trips for the hosts' clocks, and then one order to all ranks. It does no I/O, as `job_watch`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from herringbone_contract.failure import Failure
from herringbone_entry.supervisor.watching.printer import Printer
from herringbone_entry.watch import causes, entries
from herringbone_entry.watch.stragglers import Straggler, Stragglers

if TYPE_CHECKING:
    from herringbone_entry.channel.messages import Order

# The least and the longest time between two looks, and the parts of a rank's and of this host's time that they take.
_LEAST_SECONDS, _MOST_SECONDS, _SHARE, _OWN_SHARE = 5.0, 120.0, 0.001, 0.01
# Of several round trips the shortest tells most about a host's clock.
_TRIPS, _TRIP_SECONDS = 4, 0.05
# Until all answers of a look have come.
_PATIENCE_SECONDS = 3.0
# A rank's steps in a look: fewer of many ranks, since one thread compares them.
_MAX_STEPS, _LEAST_STEPS, _MAX_OF_JOB = 40, 5, 4_000
# On a busy machine any rank may be slow for a moment. And a rank that is always slow is not in the steps in which
# another one evaluates or saves.
_SLOW_SECONDS, _SLOW_SHARE = 10.0, 0.85
# By so much per second clocks differ that nobody has set meanwhile.
_DRIFT = 2e-4


class Trip(NamedTuple):
    """A round trip to a host: its length in seconds, how far the host's clock is ahead of ours, and when it ended."""

    seconds: float
    offset: float
    end: float


class StragglerWatch:
    """Names stragglers by what hosts report; `rank_hosts` has the host of each rank."""

    def __init__(
        self,
        rank_hosts: Mapping[int, str],
        *,
        printer: Printer,
        order: Callable[[Order], None],
        later: Callable[[float, Callable[[], None]], object],
        clock: Callable[[], float],
        on_fault: Callable[[str, Failure], None],
    ) -> None:
        self._rank_hosts, self._printer = rank_hosts, printer
        self._order, self._later, self._clock, self._on_fault = order, later, clock, on_fault
        named = set[int]()
        self._by_steps = Stragglers(len(rank_hosts), named)
        self._by_entries = Stragglers(len(rank_hosts), named, least=_SLOW_SECONDS, share=_SLOW_SHARE)
        # When each order `clock` of this look was sent, the shortest round trip to each host, and those of the look
        # before.
        self._sent: dict[int, float] = {}
        self._trips: dict[str, Trip] = {}
        self._before: dict[str, Trip] = {}
        self._num_orders = 0
        # The newest facts about each rank, and the answers to this look.
        self._facts: dict[int, dict[str, Any]] = {}
        self._records: dict[int, dict[str, Any]] = {}
        self._recording = set[int]()
        self._judged = 0
        self._pause = 0.0

    def steps(self, _host: str, event: Any) -> None:
        """Take step times that ranks have reported by themselves; the first report of a host has none."""
        if not self._pause and len(self._rank_hosts) > 1:
            self._pause = _LEAST_SECONDS
            self._later(self._pause, self._look)
        self._facts |= {int(rank): facts for rank, facts in event["facts"].items()}
        times = {int(rank): seconds for rank, seconds in event["seconds"].items()}
        for straggler in self._by_steps.take(times):
            self._name(straggler)

    def _look(self) -> None:
        """Look at all ranks."""
        self._sent, self._before, self._trips, self._records = {}, self._trips, {}, {}
        for trip in range(_TRIPS):
            self._later(trip * _TRIP_SECONDS, self._ask)

    def _ask(self) -> None:
        self._num_orders += 1
        self._sent[self._num_orders] = self._clock()
        is_last = len(self._sent) == _TRIPS
        steps = max(_LEAST_STEPS, min(_MAX_STEPS, _MAX_OF_JOB // len(self._rank_hosts))) if is_last else 0
        if is_last:
            self._later(_PATIENCE_SECONDS, self._judge)
        self._order({"kind": "clock", "id": self._num_orders, "steps": steps})

    def clock(self, host: str, event: Any) -> None:
        """Take a host's time."""
        sent, now = self._sent.get(event["id"]), self._clock()
        if sent is not None:
            trip = Trip(now - sent, float(event["wall"]) - (now + sent) / 2, now)
            self._trips[host] = min(trip, self._trips.get(host, trip))

    def times(self, _host: str, event: Any) -> None:
        """Take what a rank has entered, and what it waited for."""
        if event["rank"] in self._rank_hosts and event["id"] in self._sent:
            self._facts[event["rank"]] = event["facts"]
            if event["record"]:
                self._records[event["rank"]] = event["record"]

    def _judge(self) -> None:
        """Compare the ranks, and look again after a while."""
        began = self._clock()
        self._compare()
        costs = [float(record["cost"]) for record in self._records.values()]
        # A look holds ranks up, and the comparison this host.
        pause = max(_LEAST_SECONDS, max(costs, default=0.0) / _SHARE, (self._clock() - began) / _OWN_SHARE)
        self._pause = min(_MOST_SECONDS, pause)
        self._later(self._pause, self._look)

    def _compare(self) -> None:
        """Compare the ranks if all of them have answered that ever did."""
        hosts = {self._rank_hosts[rank] for rank in self._records}
        self._recording |= self._records.keys()
        if self._recording != self._records.keys() or not all(map(self._is_steady, hosts)):
            return
        records = {}
        for rank, raw in self._records.items():
            trip = self._trips[self._rank_hosts[rank]]
            records[rank] = entries.read(self._rank_hosts[rank], raw, trip.offset, trip.seconds / 2)
        for step, end, own in entries.own_times(records, self._judged):
            self._judged = step
            for straggler in self._by_entries.judge(own, end):
                self._name(straggler)

    def _is_steady(self, host: str) -> bool:
        """Say whether a host's clock is known, and nobody has set it since the last look."""
        new = self._trips.get(host)
        if new is None:
            return False
        old = self._before.get(host, new)
        return abs(new.offset - old.offset) <= (new.seconds + old.seconds) / 2 + _DRIFT * (new.end - old.end)

    def _name(self, straggler: Straggler) -> None:
        rank, host = straggler.rank, self._rank_hosts[straggler.rank]
        others = [facts for other, facts in self._facts.items() if other != rank and facts]
        why = causes.cause(self._facts.get(rank, {}), others, 1 - 1 / straggler.ratio)
        text = (
            f"straggler: rank {rank} ({host}) needs {straggler.seconds:.3g} s for a step, "
            f"{straggler.ratio:.2f} times the median of all ranks, {straggler.median:.3g} s, over "
            f"{straggler.steps} steps" + (f": {why}" if why else "")
        )
        self._printer.say(text)
        event = {
            "kind": "straggler",
            "rank": rank,
            "seconds": straggler.seconds,
            "median": straggler.median,
            "ratio": straggler.ratio,
            "steps": straggler.steps,
            "why": why,
        }
        # The controller takes the host that prints an event for the event's host.
        self._order({"kind": "emit", "host": host, "event": event})
        self._on_fault("straggler", Failure(host, rank, message=text))
