"""Tests of the lease by which machines retry a job by themselves: by literals, and in a simulated network."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from herringbone.backends.ssh.attempts.lease import PULSES, Ask, Entry, Member, is_quorum

from . import lease_network
from .lease_network import SECONDS, Network, newest

ABC = ["a", "b", "c"]


def member(name, now=0.0, names=ABC):
    return Member(name, names, seconds=8.0, value={}, now=now)


def elect(first, *others, now=0.0):
    """Have one machine win the votes of others at a moment, and give them its entry."""
    for _ in range(4):
        asks = first.asks(now)
        for other in others:
            first.take(other.name, asks[other.name], other.hear(asks[other.name], now), sent=now, now=now)


def test_each_step_of_a_bid_is_told_once():
    a, b = map(member, ABC[:2])
    stages = []
    for _ in range(4):
        asks = a.asks(1.0)
        a.take("b", asks["b"], b.hear(asks["b"], 1.0), sent=1.0, now=1.0)
        stages.append(a.stage)
    # Asked for a vote, elected, and with its entry on both.
    assert stages == [(True, False, False), (False, True, False), (False, True, True), (False, True, True)]


@pytest.mark.parametrize("count", range(1, 8))
def test_two_quorums_always_have_a_machine_in_common(count):
    names = [f"m{number}" for number in range(count)]
    votes = [set(chosen) for size in range(count + 1) for chosen in combinations(names, size)]
    quorums = [chosen for chosen in votes if is_quorum(names, chosen)]
    assert all(one & other for one in quorums for other in quorums)
    # And of each division in two, one part decides.
    assert all(is_quorum(names, chosen) != is_quorum(names, set(names) - chosen) for chosen in votes)


def test_the_first_machine_holds_the_lease_at_once_and_the_others_run_by_its_permits():
    a, b, c = map(member, ABC)
    assert b.asks(0.0) == {}
    elect(a, b, now=1.0)
    assert (a.holds(1.0), a.is_recorded, a.has_entry) == (True, True, {"a", "b"})
    assert b.committed == a.entry == Entry(term=1, number=1, attempt=1, value={})
    # What the ask returns is the voter's own clock, so an ask that arrives late permits no more.
    b.hear(Ask(term=1, candidate="a", echo=1.0), 7.0)
    assert (b.permit, c.permit) == (9.0, 8.0)
    # The holder's time ends before its voters may vote for another one.
    assert (a.holds(8.1), a.holds(8.3)) == (True, False)
    assert not b.hear(Ask(term=9, candidate="c"), 14.9).granted
    assert b.hear(Ask(term=9, candidate="c"), 15.0).granted


def test_a_later_holder_goes_on_with_what_a_quorum_had_and_the_earlier_one_is_refused():
    a, b, c = map(member, ABC)
    elect(a, b, c)
    a.record(2, {"machines": ["b"]}, 1.0)
    asks = a.asks(1.0)
    assert not a.is_recorded
    a.take("b", asks["b"], b.hear(asks["b"], 1.0), sent=1.0, now=1.0)
    assert a.is_recorded
    # c has not heard of the second attempt, and nobody hears of a any more.
    elect(c, b, now=20.0)
    assert c.holds(20.0)
    assert (c.entry.attempt, c.entry.value, c.entry.term) == (2, {"machines": ["b"]}, 2)
    assert not b.hear(asks["b"], 20.1).granted
    assert (b.follows("a", 1), b.follows("c", 2)) == (False, True)


def test_a_machine_that_was_cut_off_follows_the_holder_as_soon_as_it_is_back():
    a, b, c = map(member, ABC)
    elect(a, b, c)
    # Nobody hears c for long, and it stands again and again.
    for now in range(1, 60):
        asks = a.asks(float(now))
        a.take("b", asks["b"], b.hear(asks["b"], float(now)), sent=float(now), now=float(now))
        c.asks(float(now))
    assert c.hear(a.asks(60.0)["c"], 60.0).granted


def test_an_older_entry_of_the_same_holder_replaces_nothing():
    b = member("b")
    old, new = (Entry(term=3, number=number, attempt=number, value={}) for number in (1, 2))
    b.hear(Ask(term=3, candidate="a", entry=new, committed=True), 1.0)
    b.hear(Ask(term=3, candidate="a", entry=old, committed=True), 2.0)
    assert b.entry == b.committed == new


def test_a_machine_is_clear_when_it_says_so_or_a_permit_and_a_margin_after_its_last_answer():
    a, b, c = map(member, ABC)
    b.runs = 1
    elect(a, b, now=1.0)
    a.record(2, {}, 1.0)
    for now, clear in ((3.0, False), (4.0, True)):
        asks = a.asks(now)
        a.take("b", asks["b"], b.hear(asks["b"], now), sent=now, now=now)
        assert a.is_clear("b", now, 2.0) is clear
        b.runs = 0
    # Its first permit began with it.
    assert [a.is_clear("c", now, 2.0) for now in (9.9, 10.0)] == [False, True]
    # An answer starts the time anew, until it has the entry.
    c.runs = 1
    a.take("c", asks["c"], c.hear(asks["c"], 4.0), sent=4.0, now=4.5)
    assert [a.is_clear("c", now, 2.0) for now in (11.0, 14.4, 14.5)] == [False, False, True]


def test_a_holder_runs_ranks_for_a_lease_after_the_asks_that_a_quorum_granted():
    a, b, c = map(member, ABC)
    elect(a, b, c, now=1.0)
    for now in range(2, 12):
        a.asks(float(now))
    assert a.permit == 9.0


def test_a_lost_holder_is_clear_a_margin_after_all_others_vote_for_another():
    names = [*ABC, "d", "e"]
    a, b, c, d, e = (member(name, names=names) for name in names)
    elect(a, b, c, d, e, now=1.0)
    elect(c, d, e, now=20.0)
    c.record(2, {}, 20.0)
    # Or b may be a holder that a followed, and have lost its quorum a moment ago.
    assert [c.is_clear("a", now, 2.0) for now in (22.0, 29.9, 30.0)] == [False, False, True]
    asks = c.asks(20.5)
    c.take("b", asks["b"], b.hear(asks["b"], 20.5), sent=20.5, now=21.0)
    assert [c.is_clear("a", now, 2.0) for now in (22.9, 23.0)] == [False, True]


def test_a_holder_that_is_one_again_has_permitted_ranks_before():
    names = [*ABC, "d", "e"]
    a, b, c, d, e = (member(name, names=names) for name in names)
    elect(a, b, c, d, e, now=1.0)
    for now in (4.0, 8.0):
        asks = a.asks(now)
        a.take("e", asks["e"], e.hear(asks["e"], now), sent=now, now=now)
    a.asks(8.5)
    elect(a, b, c, d, now=14.0)
    assert (a.held_since, e.permit) == (14.0, 12.0)
    a.record(2, {}, 14.0)
    assert [a.is_clear("e", now, 2.0) for now in (17.9, 18.0)] == [False, True]


def test_a_machine_starts_only_the_newest_attempt_that_it_knows_for_the_holder_that_it_follows():
    b = member("b")
    b.hear(Ask(term=3, candidate="a", entry=Entry(term=3, number=2, attempt=2, value={}), echo=1.0), 2.0)
    assert b.may_start("a", 3, 2, 8.9)
    refused = [("a", 3, 2, 9.0), ("a", 3, 1, 2.0), ("a", 3, 3, 2.0), ("a", 2, 2, 2.0), ("c", 3, 2, 2.0)]
    assert [b.may_start(*one) for one in refused] == [False] * 5
    b.runs = 1
    assert not b.may_start("a", 3, 2, 2.0)


def test_of_two_machines_the_second_never_decides_alone():
    b = member("b", names=["a", "b"])
    for now in range(100):
        b.asks(float(now))
        assert not b.holds(float(now))


def test_a_bid_that_fails_leaves_the_others_their_turn():
    # The votes of b and c arrive, and their answers do not.
    a, b, c = map(member, ABC)
    for now in range(200):
        asks = a.asks(float(now))
        for other in (b, c):
            if other.name in asks:
                other.hear(asks[other.name], float(now))
        asks = b.asks(float(now))
        if "c" in asks:
            b.take("c", asks["c"], c.hear(asks["c"], float(now)), sent=float(now), now=float(now))
    assert b.holds(199.0)


def disturbed(seed, count):
    """Return a network after a random schedule of cut directions, lost messages and faults, whole again at its end."""
    network = Network(count, seed)
    pairs = [(one, other) for one in network.machines for other in network.machines if one != other]
    for _ in range(12):
        network.slow = network.random.choice([0.05, 0.3, 4.0])
        network.cut = {pair for pair in pairs if network.random.random() < network.random.choice([0.0, 0.3, 0.6])}
        network.run(network.random.uniform(0.5, 3) * SECONDS)
        network.fail(0.7)
    network.cut.clear()
    network.slow = 0.1
    return network


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("seed", range(12))
def test_never_two_holders_nor_two_attempts_and_progress_once_a_majority_is_back(seed, count):
    network = disturbed(seed, count)
    before = newest(network).attempt
    # Of three and more, the first machine stays away for good.
    if count > 2:
        network.dead.add("m0")
    for _ in range(12):
        network.run(2 * SECONDS)
        network.fail(1.0)
    assert newest(network).attempt >= before + 3
    # All that can hear the holder follow it.
    network.run(8 * SECONDS)
    living = [machine for name, machine in network.machines.items() if name not in network.dead]
    assert {machine.member.committed.key for machine in living} == {newest(network).key}
    # An attempt is begun in the order of the numbers, also by several holders.
    assert network.attempts == sorted(network.attempts)


def isolated(seed, count):
    """Return a network whose machines lose each other several times, alone or in pairs, with their ranks."""
    network = Network(count, seed)
    random, names = network.random, [*network.machines]
    for _ in range(6):
        network.run(random.uniform(0.1, 2.5) * SECONDS)
        lost = set(random.sample(names, 1 if random.random() < 0.6 else min(2, count - 1)))
        direction = random.random()
        network.cut = {
            (one, other)
            for one in names
            for other in names
            if (one in lost) != (other in lost) and (direction < 0.6 or (one in lost) == (direction < 0.8))
        }
        if random.random() < 0.5:
            network.run(random.uniform(0, 1.2) * SECONDS)
            network.cut |= {(one, other) for one in names for other in names if one != other and random.random() < 0.15}
        for _ in range(random.choice([8, 20, 30])):
            for name in set(names) - lost:
                network.machines[name].member.runs = 0
            network.run(SECONDS / PULSES)
        network.cut.clear()
    return network


@pytest.mark.parametrize("seed", [3, 148, 157, 186, 277])
def test_ranks_of_a_lost_machine_end_before_those_of_the_next_attempt_begin(seed, monkeypatch):
    # Clocks alone need some of it.
    monkeypatch.setattr(lease_network, "MARGIN", 0.4)
    assert len(isolated(seed, 2 + seed % 5).attempts) > 9


@given(st.integers(0, 2**32), st.integers(2, 6))
def test_any_schedule_is_safe(seed, count):
    disturbed(seed, count)
