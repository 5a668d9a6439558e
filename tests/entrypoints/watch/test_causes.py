"""The cause of a slow rank, from literal facts."""

import pytest

from herringbone_entry.watch.causes import cause

USUAL = {"cpu": 0.5, "throttled": 0.0, "swapped": 0.0, "disk": 0.05, "cores": 0.1}


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({"cpu": 0.3, "throttled": 0.6, "cores": 0.6}, "its control group limits its CPU time, in 60 % of the time"),
        ({"cpu": 0.3, "throttled": 0.05, "cores": 0.7}, "its control group limits its CPU time, in 70 % of the time"),
        ({"swapped": 900.0, "disk": 0.9}, "it reads 900 pages a second back from swap"),
        ({"disk": 0.45}, "it waits for a disk, in 45 % of the time"),
        ({"cores": 0.5}, "other processes use its cores, in 50 % of the time"),
        ({"slowed": "heat", "cpu": 0.9}, "its GPU has lowered its clock because of heat"),
        ({"cpu": 0.9}, "it computes more: it could use 1.00 cores, the others 0.60"),
        # On a busy machine it waits for cores more often, as whoever computes does.
        ({"cpu": 0.8, "cores": 0.2}, "it computes more: it could use 1.00 cores, the others 0.60"),
        ({"cpu": 0.4}, "it waits and uses no CPU meanwhile: a sleep, a lock, the network"),
        # All of its time is computing, as in the others that wait busily.
        ({"cpu": 1.0}, ""),
    ],
)
def test_the_first_wait_that_the_others_do_not_have_is_the_cause(facts, text):
    others = [USUAL, USUAL] if facts != {"cpu": 1.0} else [{**USUAL, "cpu": 1.0}]
    assert cause({**USUAL, **facts}, others, excess=0.3) == text


def test_a_wait_that_explains_little_of_the_excess_is_not_its_cause():
    """A rank that sleeps in half of its time runs seldom, and then finds the cores used."""
    sleeps = {**USUAL, "cpu": 0.05, "cores": 0.24}
    assert cause(sleeps, [USUAL], excess=0.5).startswith("it waits and uses no CPU")
    assert cause(sleeps, [USUAL], excess=0.2).startswith("other processes use its cores")


def test_other_processes_on_its_cores_are_told_from_more_work_where_all_ranks_wait_for_cores():
    """Measured with six processes on the cores of the others and 24 on its own."""
    others = [{"cpu": 0.039, "cores": 0.364}]
    assert cause({"cpu": 0.039, "cores": 0.961}, others, excess=0.2).startswith("other processes use its cores")
    assert cause({"cpu": 0.11, "cores": 0.89}, others, excess=0.2).startswith("it computes more")


def test_what_all_ranks_have_is_no_cause():
    busy = {**USUAL, "cpu": 1.0, "throttled": 0.5, "disk": 0.6, "cores": 0.7, "slowed": "heat"}
    assert cause(busy, [busy, busy], excess=0.3) == ""


def test_without_facts_there_is_no_cause():
    assert cause({}, [USUAL], 0.3) == cause(USUAL, [], 0.3) == ""
