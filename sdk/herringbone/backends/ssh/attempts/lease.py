"""The lease of a job whose machines retry it by themselves: who decides, and until when a machine may run ranks. Pure.

    every pulse   Ask -----> each other machine     a candidate asks for votes; a holder renews them in the same way
                  <----- Answer                     a grant promises the candidate `seconds` of this machine's clock

A candidate first asks whether it would get votes (`probe`), so that a machine that is cut off uses up no terms. With a
quorum of votes it holds the lease: `seconds`, counted from the *sending* of its asks. A voter counts from the
*arrival*, which is later, so no other candidate finds a quorum before the lease of the first one has ended. Each answer
has the voter's clock, and the holder's next ask returns it (`echo`): the voter may run ranks for `seconds` from that
moment on, however late the ask arrives (`permit`). The holder's own permit lasts for `seconds` from the asks that a
quorum has granted. An entry, the job's newest attempt, counts once a quorum has it. A new holder takes the newest entry
of its quorum, as in Paxos, and records it anew under its own term.

Clocks are arguments, in seconds since any moment, and count while a machine is suspended. A machine that restarts has
no state, and so it never takes part again. Decision 069 has the reasons.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import msgspec

# A lease ends this part of its length early for its holder: clocks of machines do not run equally fast.
_DRIFT = 0.1
# Asks go out this often in a lease, so that three lost ones end none.
PULSES = 8
# A candidate that has not found a quorum gives up after this part of a lease, and others have their turn.
_BID = 0.5
# Wishes of clients: start no further attempt; leave the job to the client where the machines cannot go on.
STOP, TAKE_OVER = "stop", "take over"
# So many leases after its last entry, no holder is in the middle of the start of an attempt.
_QUIET = 3


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """The agreement of the machines: attempt number `attempt`, which `value` describes.

    The holder of `term` has recorded it, as its entry number `number`.
    """

    term: int = 0
    number: int = 0
    attempt: int
    value: dict[str, Any]

    @property
    def key(self) -> tuple[int, int]:
        """The order of entries: a later one replaces an earlier one, and never the reverse."""
        return self.term, self.number


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate's request for a vote.

    `entry` is its entry once it holds the lease, and `committed` says that a quorum has it. `echo` is the voter's own
    clock, from its last answer; None while the candidate does not hold the lease. A `probe` asks for a vote without
    getting one.
    """

    term: int
    candidate: str
    probe: bool = False
    entry: Entry | None = None
    committed: bool = False
    echo: float | None = None


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A voter's answer.

    `term` is the highest that it knows, `clock` its clock, and `entry` its newest. `runs` is the number of the oldest
    attempt that has ranks there, 0 for none. `wish` is what a client has asked that machine for: `STOP` or `TAKE_OVER`.
    """

    granted: bool
    term: int
    clock: float
    entry: Entry
    runs: int = 0
    wish: str = ""


def is_quorum(members: Sequence[str], votes: Collection[str]) -> bool:
    """Report whether votes decide: those of more than half of the machines, or of half of them with the first one.

    >>> is_quorum(["a", "b", "c"], {"b", "c"}), is_quorum(["a", "b"], {"a"}), is_quorum(["a", "b"], {"b"})
    (True, True, False)

    Two quorums always have a machine in common.
    """
    return 2 * len(votes) + (members[0] in votes) > len(members)


class Member:
    """One machine's part in the lease: it votes, and it asks for votes when it hears of no holder.

    >>> member = Member("a", ["a"], seconds=30.0, value={}, now=0.0)
    >>> member.asks(0.0), member.holds(26.0), member.holds(27.0)
    ({}, True, False)

    `seconds` is the length of a lease and of a permit. `permit` is the time until which this machine may run ranks,
    those of the attempt of its `entry` alone. `runs` and `wish` are for its answers.
    """

    def __init__(self, name: str, members: Sequence[str], *, seconds: float, value: dict[str, Any], now: float) -> None:
        self.name, self.members, self.seconds = name, tuple(members), seconds
        self.entry = self.committed = Entry(attempt=1, value=value)
        self.permit = now + seconds
        self.runs, self.wish = 0, ""
        # The vote: the term and the candidate that it was given to, and when that ends.
        self._voted_term, self._voted_for, self._voted_until = 0, "", now
        self._highest_term = 0
        # The bid: its term, 0 without one; the others are of this bid alone.
        self.term, self._began = 0, 0.0
        # When each machine's last answer arrived, of whichever bid: what an answer permits lasts longer than a bid.
        self._answered = dict.fromkeys(members, now)
        # The machines that would vote for this one; None once the bid has begun in earnest.
        self._prospects: set[str] | None = None
        self.held_since: float | None = None
        # When the newest granted ask was sent, and when the first grant arrived, by machine.
        self._grants: dict[str, float] = {}
        self._granted_at: dict[str, float] = {}
        self._answers: dict[str, Answer] = {}
        self._newest = self.entry
        self._recorded_at = now
        # The first machine stands at once, and each later one after it, so that votes are seldom split.
        self._failures = 0
        self._stands_at = now if name == members[0] else now + seconds + self._turn

    @property
    def _turn(self) -> float:
        """The pause before a bid: a candidate that has failed lets all others stand before it tries again."""
        place = self.members.index(self.name) + len(self.members) * min(self._failures, 4)
        return place * self.seconds / PULSES

    def asks(self, now: float) -> dict[str, Ask]:
        """Return the asks to send now, by machine; call it every `seconds / PULSES`."""
        is_late = now > self._began + _BID * self.seconds
        if self.term and not self.holds(now) and (self.held_since is not None or is_late):
            self._give_up(now)
        if not self.term and now >= self._stands_at:
            self.term, self._began, self._prospects = self._highest_term + 1, now, {self.name}
        if self._prospects is not None and is_quorum(self.members, self._prospects):
            self._stand(now)
        if not self.term:
            return {}
        held = self.holds(now)
        if self._prospects is None:
            self._voted_until = now + self.seconds
            self._grants[self.name] = now
            self._settle(now)
            if held:
                self.permit = max(self.permit, self._confirmed + self.seconds)
        others = [member for member in self.members if member != self.name]
        clocks = {member: answer.clock for member, answer in self._answers.items()} if held else {}
        return {member: self._ask(clocks.get(member)) for member in others}

    def hear(self, ask: Ask, now: float) -> Answer:
        """Answer another machine's ask."""
        is_known = ask.candidate == self._voted_for
        granted = ask.term >= self._voted_term if is_known else ask.term > self._voted_term and now >= self._voted_until
        if granted and not ask.probe:
            self._highest_term = max(self._highest_term, ask.term)
            self._voted_term, self._voted_for, self._voted_until = ask.term, ask.candidate, now + self.seconds
            self._failures = 0
            self._stop_bidding()
            self._stands_at = now + self.seconds + self._turn
            if ask.entry is not None and ask.entry.key >= self.entry.key:
                self.entry = ask.entry
                if ask.committed:
                    self.committed = ask.entry
            if ask.echo is not None:
                self.permit = max(self.permit, ask.echo + self.seconds)
        term, entry = self._highest_term, self.entry
        return Answer(granted=granted, term=term, clock=now, entry=entry, runs=self.runs, wish=self.wish)

    def take(self, member: str, ask: Ask, answer: Answer, *, sent: float, now: float) -> None:
        """Take a machine's answer to an ask that was sent at `sent`."""
        self._highest_term = max(self._highest_term, answer.term)
        is_quiet = self.held_since is not None and now > self._recorded_at + _QUIET * self.seconds
        if not answer.granted and is_quiet and answer.term >= self.term:
            # It has voted for a later bid, which failed. Stand for a still later term, with the votes of all others.
            self._stop_bidding()
            self._stands_at = now
        # An answer to an earlier bid says nothing about this one.
        if not answer.granted or ask.term != self.term or ask.probe != (self._prospects is not None):
            return
        if self._prospects is not None:
            self._prospects.add(member)
            return
        self._grants[member] = max(sent, self._grants.get(member, sent))
        self._granted_at.setdefault(member, now)
        self._answered[member] = now
        if member not in self._answers or self._answers[member].clock <= answer.clock:
            self._answers[member] = answer
        if self.held_since is None:
            self._newest = max(self._newest, answer.entry, key=lambda entry: entry.key)
        self._settle(now)

    def holds(self, now: float) -> bool:
        """Report whether this machine holds the lease."""
        return self.held_since is not None and now < self._confirmed + (1 - _DRIFT) * self.seconds

    @property
    def _confirmed(self) -> float:
        """The time at which the newest asks were sent that a quorum has granted in this bid; -inf for none."""
        moments = sorted(self._grants.values(), reverse=True)
        granted = ({member for member, sent in self._grants.items() if sent >= moment} for moment in moments)
        quorums = (moment for moment, votes in zip(moments, granted, strict=True) if is_quorum(self.members, votes))
        return next(quorums, -math.inf)

    def follows(self, candidate: str, term: int) -> bool:
        """Report whether this machine's vote is that candidate's: it follows nobody else, and no older term."""
        return (self._voted_for, self._voted_term) == (candidate, term)

    def record(self, attempt: int, value: dict[str, Any], now: float) -> None:
        """Propose a new entry; only the holder may. It counts once it `is_recorded`."""
        assert self.held_since is not None
        self._recorded_at = now
        number = self.entry.number + 1 if self.entry.term == self.term else 1
        self.entry = Entry(term=self.term, number=number, attempt=attempt, value=value)

    @property
    def has_entry(self) -> set[str]:
        """The machines that have this holder's entry."""
        others = {member for member, answer in self._answers.items() if answer.entry.key == self.entry.key}
        return {self.name, *others} if self.entry.term == self.term else set()

    @property
    def is_recorded(self) -> bool:
        """Report whether a quorum has this holder's entry, so that every later holder will know of it."""
        return is_quorum(self.members, self.has_entry)

    @property
    def stage(self) -> tuple[bool, bool, bool]:
        """The steps of this machine's bid that are done: with another one, the next pulse need not be waited for."""
        may_stand = self._prospects is not None and is_quorum(self.members, self._prospects)
        return may_stand, self.held_since is not None, self.is_recorded

    def is_clear(self, member: str, now: float, margin: float) -> bool:
        """Report whether a machine runs no ranks of an earlier attempt than this holder's, and will start none.

        It says so itself; or it is cut off, and its last permit is over. `margin` is the time that the machine needs to
        end its ranks.
        """
        if self.held_since is None:
            return False
        runs = self.runs if member == self.name else self._answers[member].runs if member in self._answers else 0
        if member in self.has_entry and runs in (0, self.entry.attempt):
            return True
        return now >= self._permitted_until(member, self.held_since) + margin

    def _permitted_until(self, member: str, held_since: float) -> float:
        """Return until when a machine that is cut off may run ranks, at most.

        [1] By a permit of this machine: `seconds` from its last answer.
        [2] By one of another holder, which had a quorum, so that this machine holds its lease `seconds` after the last
            asks of that one that a quorum granted. Its own permit was over by then. It may have permitted others to
            run for a lease longer, except where it votes for this machine: it did not, in the `seconds` before.
        """
        if member == self.name:
            return held_since + self.seconds
        own = self._answered[member] + self.seconds
        if member in self._answers:
            # Nor has it another holder's permit: it votes for this one.
            return own
        others = [self._granted_at.get(other, math.inf) for other in self.members if other not in (self.name, member)]
        return max(own, min(max([held_since, *others]), held_since + self.seconds))

    @property
    def wishes(self) -> set[str]:
        """The wishes of clients, as far as this holder has heard of them."""
        return {self.wish, *(answer.wish for answer in self._answers.values())}

    def may_start(self, candidate: str, term: int, attempt: int, now: float) -> bool:
        """Report whether this machine may start the ranks of an attempt for a holder."""
        return (
            self.follows(candidate, term)
            and attempt == self.entry.attempt
            and self.runs in (0, attempt)
            and now < self.permit
        )

    def _ask(self, echo: float | None) -> Ask:
        entry = self.entry if self.held_since is not None else None
        committed, probe = entry is not None and self.is_recorded, self._prospects is not None
        return Ask(term=self.term, candidate=self.name, probe=probe, entry=entry, committed=committed, echo=echo)

    def _stand(self, now: float) -> None:
        """Begin a bid in earnest, if this machine's own vote is free."""
        self._prospects = None
        if now < self._voted_until and self._voted_for != self.name:
            self._give_up(now)
            return
        self._highest_term += 1
        self.term, self._began = self._highest_term, now
        self._voted_term, self._voted_for = self.term, self.name
        self._grants, self._granted_at, self._answers = {}, {}, {}
        self._newest = self.entry

    def _settle(self, now: float) -> None:
        """Hold the lease once a quorum has granted it, with the newest entry that any of them has."""
        if self.held_since is None and is_quorum(self.members, self._grants):
            self.held_since = now
            if self.holds(now):
                self._failures = 0
                self.record(self._newest.attempt, self._newest.value, now)
            else:
                self.held_since = None
        if self.held_since is not None and self.is_recorded:
            self.committed = self.entry

    def _give_up(self, now: float) -> None:
        self._failures += 1
        self._stop_bidding()
        self._stands_at = now + self._turn

    def _stop_bidding(self) -> None:
        self.term, self.held_since, self._prospects = 0, None, None
