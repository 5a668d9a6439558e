"""Reading many jobs at once: in threads, where one left off, and without waiting for the one that does not answer."""

import threading
import time

import pytest
from tests.sdk.views.top.made import training
from tests.waiting import wait_until

from herringbone.backends.registry import backend_named
from herringbone.events.view import JobView
from herringbone.records.index import JobIndex
from herringbone.system.polling import Pace
from herringbone.views.top.monitor import JobReader, Monitor, shown_pace
from herringbone_contract.errors import AwsError, JobNotFoundError


def reader_of(home, name):
    return JobReader(JobIndex(home.index).get(name))


def test_a_look_continues_where_the_last_one_ended(home, make_job, monkeypatch):
    taken = []
    take = JobView.take
    monkeypatch.setattr(JobView, "take", lambda view, event: (taken.append(event["kind"]), take(view, event)))
    make_job("a", training(step=10, loss=2.0), ["one"])
    reader = reader_of(home, "a")
    row = reader.look()
    assert (row.value, row.done, row.last_line) == (2.0, 10.0, "one")
    make_job.append("a", training(step=20, loss=1.0), ["two"])
    row = reader.look()
    assert (row.value, row.done, row.last_line) == (1.0, 20.0, "two")
    assert len(taken) == 2 * len(training())
    assert reader.look().last_line == "two"
    assert reader.detail is None
    reader.close()


def test_only_the_end_of_a_log_is_read(home, make_job):
    make_job("a", [], [f"line {number}" for number in range(100_000)])
    reader = reader_of(home, "a")
    reader.open_detail()
    assert reader.look().last_line == "line 99999"
    assert reader.detail.lines[0] == "[algo-1:0] line 99800"
    reader.close()


def test_a_job_that_ends_is_read_to_its_end_and_then_no_more(home, make_job):
    make_job("a", training(loss=2.0), ["one"], status="Completed")
    reader = reader_of(home, "a")
    reader.follow()  # Returns, since the job is over.
    assert (reader.row.state, reader.row.last_line, reader.row.value) == ("Completed", "one", 2.0)
    assert reader.detail.metrics[1][0] == "loss"


class Failing:
    """A backend whose jobs cannot be asked about: `error` is raised, and without one the question never ends."""

    name = "sagemaker"
    pace = Pace(2, 10, 1.2)

    def __init__(self, error, released):
        self.error, self.released = error, released

    def describe(self, name):
        if self.error is not None:
            raise self.error
        self.released.wait(20)
        raise JobNotFoundError("gone")

    def stop(self, name):
        raise AwsError("denied", code="AccessDenied")


@pytest.fixture
def released():
    event = threading.Event()
    yield event
    event.set()
    time.sleep(0.05)


@pytest.mark.parametrize("error", [None, AwsError("no such region", code="x")])
def test_a_job_that_cannot_be_reached_delays_no_other(home, make_job, released, error):
    make_job("here", training(), ["hello"])
    make_job("away", created=5.0)
    JobIndex(home.index).update("away", backend="sagemaker")
    failing = Failing(error, released)
    monitor = Monitor(backend_named=lambda name: failing if name == "sagemaker" else backend_named(name))
    monitor.refresh()
    wait_until(lambda: monitor.reader("here").was_read)
    assert monitor.wait(10.0 if error else 0.0) == (error is not None)
    here, away = monitor.rows()
    assert (here.name, here.last_line, here.value) == ("here", "hello", 0.5)
    assert (away.name, away.state) == ("away", "Training")
    assert away.trouble == ("" if error is None else "no such region")
    assert monitor.rows(now=time.time() + 30)[1].trouble.startswith("no answer for" if error is None else "no such")


def test_new_jobs_appear_and_removed_ones_go(home, make_job):
    monitor = Monitor(num_finished=1)
    monitor.refresh()
    assert monitor.rows() == []
    make_job("over-1", status="Completed", created=1.0)
    make_job("over-2", status="Failed", created=2.0)
    make_job("here", created=1.5)
    monitor.refresh()
    assert [row.name for row in monitor.rows()] == ["here", "over-2"]
    reader = monitor.reader("here")
    monitor.refresh()
    assert monitor.reader("here") is reader
    JobIndex(home.index).remove("here")
    monitor.refresh()
    assert [row.name for row in monitor.rows()] == ["over-2"]
    make_job.append("over-2")
    assert monitor.wait(30.0)


def test_damaged_events_do_not_end_the_reader(home, make_job):
    event = {"kind": "steps", "rank": 0, "count": 1, "seconds": ["x", None]}
    make_job("a", [event, {"kind": "metrics", "name": 7, "values": [1]}, {"kind": "progress", "done": [], "unit": {}}])
    reader = reader_of(home, "a")
    assert reader.look().state == "Training"
    reader.close()


def test_the_pace_is_at_most_a_look_a_second_and_a_services_own():
    assert shown_pace(Pace(0.01, 0.1, 1.05)) == Pace(1.0, 1.0, 1.05)
    assert shown_pace(Pace(2.0, 10.0, 1.2, 0.25)) == Pace(2.0, 10.0, 1.2, 0.25)
