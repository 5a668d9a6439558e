"""The rules that watch a job: a standstill, a straggler, the first collective operation that differs. All pure."""

from herringbone_entry.watch.collect import tcp_connections
from herringbone_entry.watch.flight import first_difference
from herringbone_entry.watch.standstill import Standstill
from herringbone_entry.watch.stragglers import Stragglers


def test_a_standstill_is_looked_at_when_it_is_twice_as_long():
    standstill = Standstill(["a"], 10.0)
    times = [quiet for quiet in range(0, 90, 5) if standstill.take("a", float(quiet)) is not None]
    assert times == [10, 20, 40, 80]


def test_a_move_arms_the_watch_again():
    standstill = Standstill(["a"], 10.0)
    assert [standstill.take("a", quiet) for quiet in (11.0, 12.0, 1.0, 9.0, 10.5)] == [11.0, None, None, None, 10.5]


def test_a_host_that_has_not_reported_may_have_moved():
    standstill = Standstill(["a", "b"], 10.0)
    assert standstill.take("a", 99.0) is None
    assert standstill.take("stranger", 99.0) is None
    assert standstill.take("b", 12.0) == 12.0


def test_collectives_of_silent_ranks_postpone_the_look():
    standstill = Standstill(["a"], 10.0)
    assert standstill.take("a", 10.0) == 10.0
    standstill.excuse(10.0, age=1.0)
    assert [standstill.take("a", quiet) for quiet in (18.0, 19.0)] == [None, 19.0]


def feed(stragglers, *steps):
    return [found for step in steps for found in stragglers.take({rank: [time] for rank, time in enumerate(step)})]


def test_a_straggler_is_named_once_after_twenty_slow_steps():
    stragglers = Stragglers(4)
    assert feed(stragglers, *[(1.0, 1.0, 1.0, 1.3)] * 19) == []
    [found] = feed(stragglers, (1.0, 1.0, 1.0, 1.3))
    assert (found.rank, found.seconds, found.median, found.steps) == (3, 1.3, 1.0, 20)
    assert abs(found.ratio - 1.3) < 1e-9
    assert feed(stragglers, *[(1.0, 1.0, 1.0, 1.3)] * 40) == []


def test_a_step_at_the_usual_speed_begins_the_count_anew():
    stragglers = Stragglers(3)
    slow = [(1.0, 1.0, 2.0)] * 19
    assert feed(stragglers, *slow, (1.0, 1.0, 1.2), *slow) == []


def judged(*steps, seconds=1.0):
    """The ranks named in steps that end after so many seconds each, of those that are slow in 85 % of 10 seconds."""
    stragglers = Stragglers(3, least=10.0, share=0.85)
    found = [stragglers.judge(dict(enumerate(step)), end * seconds) for end, step in enumerate(steps)]
    return [(straggler.rank, straggler.steps) for each in found for straggler in each]


def test_a_rank_that_is_always_slow_is_named_although_another_one_saves_every_tenth_step():
    slow, saves = (1.0, 1.5, 1.0), (5.0, 1.5, 1.0)
    assert judged(*[*[slow] * 9, saves] * 3) == [(1, 20)]
    assert judged(*[*[(1.0, 1.0, 1.0)] * 9, saves] * 9) == []


def test_short_steps_are_slow_for_some_seconds_before_the_rank_is_named():
    assert judged(*[(1.0, 1.5, 1.0)] * 100, seconds=0.1) == []
    assert judged(*[(1.0, 1.5, 1.0)] * 101, seconds=0.1) == [(1, 101)]


def test_a_rank_is_named_once_whoever_sees_it():
    named = {1}
    assert Stragglers(3, named).take({0: [1.0] * 20, 1: [2.0] * 20, 2: [1.0] * 20}) == []


def test_steps_are_compared_by_their_number_however_late_a_report_is():
    stragglers = Stragglers(3)
    assert stragglers.take({0: [1.0] * 20, 1: [1.0] * 20}) == []
    assert [found.rank for found in stragglers.take({2: [1.5] * 20, 7: [9.0]})] == [2]


def test_step_times_that_are_no_numbers_name_nobody():
    stragglers = Stragglers(3)
    assert feed(stragglers, *[(1.0, float("nan"), 1.0)] * 30) == []


def record(*operations, group="default_pg", groups=None):
    """The record of a rank: (operation, shape, done) one after the other."""
    entries = [
        {"group": group, "seq": number, "op": op, "shape": shape, "done": done, "p2p": False}
        for number, (op, shape, done) in enumerate(operations, 1)
    ]
    return {"age": 3.0, "groups": groups or {}, "entries": entries}


DONE = ("all_reduce", "[[4]] Float", True)
WAITS = ("all_reduce", "[[4]] Float", False)


def test_the_rank_that_is_missing_in_a_collective_is_named():
    difference = first_difference({0: record(DONE, WAITS), 1: record(DONE), 2: record(DONE, WAITS)})
    assert difference.odd == (1,)
    assert str(difference) == (
        "collective operation 2: ranks 0, 2 in all_reduce [[4]] Float; rank 1 has not entered it"
    )


def test_another_shape_and_another_operation_are_named():
    other = ("all_reduce", "[[3]] Float", True)
    difference = first_difference({0: record(DONE, WAITS), 1: record(DONE, other), 2: record(DONE, WAITS)})
    assert difference.odd == (1,)
    assert "rank 1 in all_reduce [[3]] Float" in str(difference)
    difference = first_difference({0: record(WAITS), 1: record(("barrier", "[]", False))})
    assert difference.odd == ()
    assert str(difference) == "collective operation 1: rank 0 in all_reduce [[4]] Float; rank 1 in barrier"


def test_shapes_that_may_differ_and_ranks_without_a_record_prove_nothing():
    broadcast = [("broadcast", "[[1]] Float", False), ("broadcast", "[[9]] Float", False)]
    assert first_difference({0: record(broadcast[0]), 1: record(broadcast[1])}) is None
    assert first_difference({0: record(WAITS)}) is None
    assert first_difference({}) is None


def test_the_members_of_a_group_are_compared_with_each_other_alone():
    groups = {"dp": [0, 1]}
    records = {0: record(WAITS, group="dp", groups=groups), 1: record(group="dp", groups=groups), 2: record()}
    difference = first_difference(records)
    assert difference.odd == (1,)
    assert str(difference).startswith("collective operation 1 of group dp: rank 0 in")


def test_connections_are_read_from_the_kernels_table():
    table = (
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
        "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 70 1\n"
        "   1: 0100007F:1F90 0100007F:0050 01 00000010:00000000 01:00000014 00000003     0        0 77 2\n"
        "   2: 0100007F:1F91 0100007F:0050 01 00000000:00000000 00:00000000 00000000     0        0 78 2\n"
        "   3: 0100007F:1F92 0100007F:0050 01 00000010:00000000 01:00000014 00000003     0        0 99 2\n"
        "junk\n"
    )
    assert tcp_connections(table, {"70", "77", "78"}) == [
        ("0100007F:1F90", "0100007F:0050", True),
        ("0100007F:1F91", "0100007F:0050", False),
    ]
