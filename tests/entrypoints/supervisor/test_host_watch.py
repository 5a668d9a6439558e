"""One host's part in watching a job: only what ranks send is a sign of life."""

from types import SimpleNamespace

import pytest

from herringbone_contract.events.format import encode
from herringbone_entry.supervisor.host_watch import HostWatch


class Host:
    """A context and ranks that print nothing."""

    def __init__(self):
        self.reports, self.timers = [], []
        loop = SimpleNamespace(later=lambda *timer: self.timers.append(timer))
        context = SimpleNamespace(loop=loop, report=self.reports.append)
        self.watch = HostWatch(context, SimpleNamespace(moved_at=0.0, pids={}))
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
