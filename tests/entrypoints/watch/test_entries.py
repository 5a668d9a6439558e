"""A rank's own time in a step, by literal times at which ranks have entered collective operations."""

import pytest

from herringbone_entry.watch.entries import Record, own_times, read

ENDS = {4: 0.0, 5: 1.0}
ALL = "default_pg"


def own(records, after=0):
    [(step, end, times)] = list(own_times(records, after))
    return step, end, {rank: pytest.approx(seconds) for rank, seconds in times.items()}


def record(*entered, host="a", error=0.0, ends=ENDS, group=ALL):
    """The record of a rank that entered operations 1, 2, ... of a group at these times."""
    return Record(host, error, ends, {(group, number): time for number, time in enumerate(entered, 1)})


def test_the_rank_that_enters_last_needs_the_whole_step_and_the_others_do_not_wait():
    assert own({0: record(0.3, 0.9), 1: record(0.8, 0.9), 2: record(0.3, 0.9)}) == (5, 1.0, {0: 0.5, 1: 1.0, 2: 0.5})


def test_waits_for_operations_that_overlap_count_once_and_others_add_up():
    early, late = record(0.1, 0.2, 0.6), record(0.3, 0.4, 0.7)
    assert own({0: early, 1: late}) == (5, 1.0, {0: 0.6, 1: 1.0})


def test_ranks_are_compared_within_their_groups():
    """The second stage of a pipeline begins later, and waits for nobody of its own group."""
    records = {rank: record(0.1, group="first") for rank in (0, 1)} | {
        rank: record(0.8, group="last") for rank in (2, 3)
    }
    records[3] = record(0.95, group="last")
    assert own(records) == (5, 1.0, {0: 0.85, 1: 0.85, 2: 0.85, 3: 1.0})


def test_lateness_within_the_error_of_two_hosts_clocks_is_none():
    records = {0: record(0.2, error=0.05), 1: record(0.35, host="b", error=0.1), 2: record(0.2, error=0.05)}
    assert own(records) == (5, 1.0, {0: 1.0, 1: 1.0, 2: 1.0})
    # One host has one clock.
    records[1] = record(0.35, error=0.1)
    assert own(records)[2][0] == 0.85


def test_steps_that_some_rank_has_not_taken_or_that_were_judged_or_have_no_operation_are_left_out():
    ends = {4: 0.0, 5: 1.0, 6: 2.0}
    longer = record(0.5, ends=ends)
    assert [step for step, _, _ in own_times({0: longer, 1: record(0.5)}, after=0)] == [5]
    assert list(own_times({0: longer, 1: longer}, after=5)) == []
    assert list(own_times({0: record(0.5), 1: record(0.5, group="other")}, after=0)) == []
    assert list(own_times({}, after=0)) == []


def test_a_record_is_read_in_the_seconds_of_another_clock():
    raw = {"origin": 1000.5, "number": 7, "ends": [0, 250_000], "entered": {ALL: [[3, 100_000]]}}
    assert read("b", raw, offset=1000.0, error=0.1) == Record("b", 0.1, {7: 0.5, 8: 0.75}, {(ALL, 3): 0.6})
