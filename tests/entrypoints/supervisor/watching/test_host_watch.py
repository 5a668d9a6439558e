"""One host's part in watching a job: only what ranks send is a sign of life."""

import time
from types import SimpleNamespace

import pytest

from herringbone_contract.events.format import encode
from herringbone_entry.supervisor.watching.host_watch import HostWatch


class Host:
    """A context and ranks that print nothing."""

    def __init__(self):
        self.reports, self.timers = [], []
        loop = SimpleNamespace(later=lambda *timer: self.timers.append(timer))
        context = SimpleNamespace(loop=loop, report=self.reports.append)
        self.ranks = SimpleNamespace(moved_at=0.0, pids={}, numbers=[5, 4], orders="/nowhere")
        self.watch = HostWatch(context, self.ranks)
        self.watch._moved_at -= 100.0

    def quiet(self):
        self.watch.watch(50.0, is_chosen=True)
        return self.reports.pop()["quiet"]


@pytest.mark.parametrize("kind", ["sample", "checkpoint", "lost"])
def test_what_the_observer_sees_is_no_sign_of_life(kind):
    host = Host()
    host.watch.take_events(encode({"kind": kind, "t": 1.0, "rank": 0}))
    assert host.quiet() >= 100.0


@pytest.mark.parametrize("kind", ["metric", "metrics", "progress", "steps", "timeline"])
def test_what_ranks_send_is_one(kind):
    host = Host()
    host.watch.take_events(encode({"kind": kind, "t": 1.0, "rank": 0}) + b"junk\n")
    assert host.quiet() < 50.0


def test_step_times_are_reported_at_most_once_a_second():
    host = Host()
    for _ in range(500):
        host.watch.take_events(encode({"kind": "steps", "t": 1.0, "rank": 3, "seconds": [0.5, "x", None]}))
    [(seconds, report)] = host.timers
    report()
    [steps] = host.reports
    assert (seconds, steps["kind"], steps["seconds"]) == (1.0, "steps", {"3": [0.5] * 100})
    host.watch.take_events(encode({"kind": "steps", "t": 1.0, "rank": 3, "seconds": [0.5]}))
    assert len(host.timers) == 2


def test_the_order_clock_is_answered_with_the_time_and_with_what_samples_say_about_the_ranks():
    host = Host()
    host.ranks.pids = {4: 104, 5: 105}
    gpus = [{"slowed": "heat"}, {}]
    for cpu in (0.25, 0.75):
        ranks = {"4": {"cpu": cpu, "state": "R"}, "5": {"cpu": 1.0, "state": "D", "disk": cpu}}
        host.watch.take_events(encode({"kind": "sample", "t": 1.0, "ranks": ranks, "gpus": gpus}))
    host.timers.clear()
    host.watch.steps.answer({"kind": "clock", "id": 7, "steps": 0})
    host.watch.steps.answer({"kind": "clock", "id": 8, "steps": 40})
    for _, report in host.timers:
        report()
    asked, clock, first, second = host.reports
    assert (asked["id"], clock["id"], clock["kind"], abs(clock["wall"] - time.time()) < 60.0) == (7, 8, "clock", True)
    none = {"throttled": 0.0, "swapped": 0.0, "disk": 0.0, "cores": 0.0}
    # No such rank takes orders.
    assert first == {
        "kind": "times",
        "id": 8,
        "rank": 4,
        "record": None,
        "facts": none | {"cpu": 0.5, "slowed": "heat"},
    }
    assert (second["rank"], second["facts"]) == (5, none | {"cpu": 1.0, "disk": 0.5, "slowed": ""})


def test_samples_are_reported_as_idleness_only_where_somebody_wants_that():
    host = Host()
    host.watch.take_events(encode({"kind": "sample", "t": 1.0, "seconds": 5.0, "cpu": 0.0}))
    assert host.reports == []
    host.watch._idle_timeout = 60.0
    for cpu in (0.0, 0.0, 2.0):
        host.watch.take_events(encode({"kind": "sample", "t": 1.0, "seconds": 5.0, "cpu": cpu}))
    assert [(report["kind"], report["seconds"], report["limit"]) for report in host.reports] == [
        ("unused", 5.0, 60.0),
        ("unused", 10.0, 60.0),
        ("unused", 0.0, 60.0),
    ]
    # Nothing is reported by a timer for a job that never hangs.
    host.timers.clear()
    host.watch.watch(0.0, is_chosen=False)
    assert host.timers == []
