"""What a rank reports of its last steps, from literal ends of steps and operations."""

import pytest

from herringbone_entry.ranks.recorder import entries, flight_record
from herringbone_entry.ranks.recorder.entries import last_steps

MICRO, ALL = 1_000, "default_pg"


def steps(*micros):
    return [(number, micro * MICRO) for number, micro in enumerate(micros, 1)]


def operations(*micros, group=ALL, first=1):
    return [(micro * MICRO, group, seq) for seq, micro in enumerate(micros, first)]


def test_operations_after_the_last_step_wait_for_the_next_look():
    found = last_steps(steps(10, 20, 30), operations(5, 15, 25, 35), 40)
    assert (found["number"], found["ends"], found["entered"]) == (1, [0, 10, 20], {ALL: [[2, 5], [3, 15]]})


def test_a_step_whose_first_operations_are_forgotten_is_left_out():
    found = last_steps(steps(10, 20, 30, 40), operations(15, 25, 35, first=7), 40)
    assert (found["number"], found["ends"], found["entered"]) == (2, [0, 10, 20], {ALL: [[8, 5], [9, 15]]})


def test_only_as_many_steps_as_asked_for_are_reported():
    assert last_steps(steps(10, 20, 30), operations(5, 15, 25), 1)["ends"] == [0, 10]
    assert last_steps(steps(10), operations(5), 40) == last_steps(steps(10, 20), [], 40) == {}


def test_of_many_operations_all_ranks_choose_the_same_ones():
    entered = operations(*range(11, 112), first=0)
    early = last_steps(steps(11, 200), entered, 40)
    # This rank also belongs to a group of its own.
    late = last_steps(steps(11, 200), sorted([*entered, *operations(12, group="other", first=3)]), 40)
    numbers = [seq for seq, _ in early["entered"][ALL]]
    assert numbers == [seq for seq, _ in late["entered"][ALL]]
    assert (numbers[0], len(numbers)) == (1, 13)


def test_a_rank_without_a_new_step_reports_nothing_so_that_a_hang_looks_like_one(monkeypatch):
    from herringbone_entry.ranks.recorder import step_times

    raw = [
        {"time_created_ns": time, "process_group": ("0", ALL), "collective_seq_id": seq, "is_p2p": seq == 9}
        for time, _, seq in operations(5, 15, 16, first=7)
    ]
    monkeypatch.setattr(flight_record, "read", lambda: (raw, {}))
    step_times.ends.clear()
    assert entries.obey({"steps": 40}) == {}
    step_times.ends.extend(steps(10, 20))
    assert entries.obey({"steps": 40})["entered"] == {ALL: [[8, 5]]}
    assert entries.obey({"steps": 40}) == {}
    step_times.ends.append((3, 30 * MICRO))
    assert entries.obey({"steps": 40})["ends"] == [0, 10, 20]


def test_what_a_pipeline_counts_replaces_its_collective_operations(monkeypatch):
    from herringbone_contract.events import steps as counted
    from herringbone_entry.ranks.recorder import step_times

    monkeypatch.setattr(flight_record, "read", lambda: pytest.fail("of a slow pipeline all ranks are late in these"))
    monkeypatch.setattr(entries, "_reported", None)
    monkeypatch.setattr(counted, "entered", operations(5, 15, group="stage 1", first=7))
    step_times.ends.clear()
    step_times.ends.extend(steps(10, 20))
    assert entries.obey({"steps": 40})["entered"] == {"stage 1": [[8, 5]]}
