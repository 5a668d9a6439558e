"""Events in, notices out, each once; literals, and clocks as arguments."""

import pytest

from herringbone.trackers.facts import facts_of
from herringbone.trackers.notices import MAX_NOTICES, Notices

TRAINING = {"kind": "state", "t": 100.0, "state": "Training", "why": ""}
RANGE = {"low": 900.0, "expected": 1000.0, "high": 1200.0}
PLANNED = {"hosts": "local", "count": 1, "distribution": {}, "mesh": {}, "seconds": RANGE}
PREDICTED = {"prediction": {"planned": PLANNED}, "options": {"max_run": 3600}}


def hang(t, since, why="rank 1 (algo-2) at train.py:12"):
    return {"kind": "hang", "t": t, "since": since, "why": why, "ranks": [1]}


def progress(t, done, eta):
    return {"kind": "progress", "t": t, "rank": 0, "done": done, "total": 100, "unit": "step", "eta": eta}


def told(notices, *events):
    return [(notice.id, notice.text) for event in events for notice in notices.take(event)]


def ended(**members):
    description = {"TrainingJobName": "a", "TrainingEndTime": "1970-01-01T00:03:20+00:00", **members}
    return facts_of(description, backend="local", created=50.0)


def test_each_thing_that_happened_is_one_sentence():
    notices = Notices({}, created=50.0)
    events = (
        TRAINING,
        {"kind": "sample", "t": 101.0, "cpu": 1.0},
        {"kind": "straggler", "t": 110.0, "rank": 3, "host": "algo-2", "seconds": 0.5, "median": 0.25},
        hang(200.0, 30.0),
        {"kind": "restart", "t": 210.0, "attempt": 2, "why": "algo-2 was lost"},
    )
    assert told(notices, *events) == [
        ("straggling-1-3", "rank 3 on algo-2 takes 0.5 s a step, the others 0.25 s: 2.0 times as long"),
        ("hung-1", "nothing has moved for 30.0 s; the odd one is rank 1: rank 1 (algo-2) at train.py:12"),
        ("restarted-2", "attempt 2: algo-2 was lost"),
    ]


def test_one_standstill_is_told_once_and_the_next_one_again():
    notices = Notices({}, created=50.0)
    # The second report is of the same standstill, with another place; before the third, the job has moved.
    assert [
        name for name, _ in told(notices, hang(200.0, 30.0), hang(230.0, 60.0, "elsewhere"), hang(500.0, 40.0))
    ] == [
        "hung-1",
        "hung-2",
    ]


def test_a_process_that_begins_again_leaves_out_what_was_sent():
    events = (hang(200.0, 30.0), {"kind": "restart", "t": 210.0, "attempt": 2, "why": "x"}, hang(500.0, 30.0))
    first = Notices({}, created=50.0)
    told(first, *events[:2])
    second = Notices({}, created=50.0, rows=first.rows())
    assert [name for name, _ in told(second, *events)] == ["hung-2"]


def test_a_rank_is_named_once_in_each_attempt():
    slow = {"kind": "straggler", "t": 110.0, "rank": 3, "seconds": 0.5, "median": 0.25}
    again = {"kind": "restart", "t": 210.0, "attempt": 2, "why": "x"}
    names = [name for name, _ in told(Notices({}, created=50.0), slow, slow, again, slow)]
    assert names == ["straggling-1-3", "restarted-2", "straggling-2-3"]


def test_only_the_kinds_that_a_destination_wants():
    notices = Notices({}, created=50.0, kinds=("failed",))
    assert told(notices, hang(200.0, 30.0)) == []
    assert notices.end(ended(TrainingJobStatus="Completed")) == []


@pytest.mark.parametrize(
    ("members", "kind", "text"),
    [
        ({"TrainingJobStatus": "Completed"}, "ended", "completed after 1 min 40 s"),
        (
            {"TrainingJobStatus": "Stopped", "SecondaryStatus": "MaxRuntimeExceeded"},
            "ended",
            "stopped: max_run was over after 1 min 40 s",
        ),
        (
            {"TrainingJobStatus": "Failed", "FailureReason": "rank 0 on algo-1: ValueError: x\nmore"},
            "failed",
            "failed after 1 min 40 s: rank 0 on algo-1: ValueError: x",
        ),
    ],
)
def test_the_end_names_its_reason(members, kind, text):
    notices = Notices({}, created=50.0)
    notices.take(TRAINING)
    assert [(one.id, one.kind, one.time, one.text) for one in notices.end(ended(**members))] == [
        ("end", kind, 200.0, text)
    ]
    assert notices.end(ended(**members)) == []


def test_late_by_time_alone_and_only_once():
    notices = Notices(PREDICTED, created=50.0)
    assert notices.tick(2000.0) == []
    notices.take(TRAINING)
    assert notices.tick(1249.0) == []
    (late,) = notices.tick(1251.0)
    assert (late.kind, late.text) == ("late", "it takes 20 min 1 s or more, and 16 min 40 s were predicted")
    assert notices.tick(1300.0) == []


def test_late_by_the_jobs_own_estimate_unless_that_is_rough():
    notices = Notices(PREDICTED, created=50.0)
    notices.take(TRAINING)
    notices.take(progress(110.0, 2, 9000.0))
    assert notices.tick(111.0) == []
    notices.take(progress(120.0, 10, 1500.0))
    assert [one.id for one in notices.tick(121.0)] == ["late"]


def test_an_estimate_beyond_the_limit_is_told_before_the_limit_is_reached():
    notices = Notices({"options": {"max_run": 3600}}, created=50.0)
    notices.take(TRAINING)
    notices.take(progress(200.0, 10, 4000.0))
    (late,) = notices.tick(200.0)
    assert (late.id, late.kind) == ("late-limit", "late")
    assert late.text == "by its progress it needs 1 h 8 min, and it is stopped after 1 h"
    # Another attempt has estimated nothing yet.
    notices = Notices({"options": {"max_run": 3600}}, created=50.0)
    notices.take(TRAINING)
    notices.take(progress(200.0, 10, 4000.0))
    notices.take({"kind": "restart", "t": 210.0, "attempt": 2, "why": "x"})
    assert notices.tick(211.0) == []


def test_unused_devices_are_told_of_twice_and_not_when_they_are_used_again():
    events = [
        {"kind": "idle", "t": t, "seconds": seconds, "limit": 600.0, "ends": seconds >= 600, "what": f"unused for {t}"}
        for t, seconds in ((10.0, 300.0), (20.0, 0.0), (30.0, 300.0), (40.0, 600.0))
    ]
    names = [name for name, _ in told(Notices({}, created=50.0), *events)]
    assert names == ["idle-1", "idle-2", "idle-2-end"]


def test_a_budget_is_told_of_before_it_is_spent():
    plan = {"hourly_cost": 3.6, "options": {"max_cost": 1.0}}
    notices = Notices(plan, created=50.0)
    assert notices.tick(5000.0) == []
    notices.take(TRAINING)
    assert notices.tick(899.0) == []
    (budget,) = notices.tick(900.0)
    assert (budget.kind, budget.text) == ("budget", "$0.80 of $1.00 (max_cost) are spent; it is stopped in 3 min 19 s")
    assert notices.tick(901.0) == []
    # One that nobody has told of in time is told of by the end.
    late = Notices(plan, created=50.0)
    late.take(TRAINING)
    assert late.tick(2000.0) == []


def test_a_flood_is_bounded_and_the_end_is_told():
    notices = Notices({}, created=50.0)
    slow = [{"kind": "straggler", "t": 1.0, "rank": rank} for rank in range(10_000)]
    assert len(told(notices, *slow)) == MAX_NOTICES
    assert [one.id for one in notices.end(ended(TrainingJobStatus="Completed"))] == ["end"]


@pytest.mark.parametrize("event", [{"kind": "hang", "t": 1.0, "since": "x"}, {"kind": "new", "t": 1.0}])
def test_a_damaged_event_is_no_notice(event):
    assert told(Notices({"prediction": 3, "options": {}}, created=50.0), event) == []
