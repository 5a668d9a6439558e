"""A job elsewhere: its log and events come through sources, at its backend's pace, from machines or a service."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timezone

from herringbone.records.home import Home
from herringbone.records.index import JobRecord
from herringbone.records.logs import FileLogs, LogLine
from herringbone.system.polling import Pace
from herringbone.views.page.live import LiveJob
from herringbone.views.page.log_pages import Choice

AT = datetime.fromtimestamp(1_800_000_000, timezone.utc)
PLAN = json.dumps({"hosts": [{"name": "algo-1"}]})


class Source:
    """Gives its batches one by one, and then nothing; `late` comes with `rest`."""

    def __init__(self, batches, late=()):
        self.batches, self.late, self.closed = list(batches), list(late), False

    def read(self):
        return self.batches.pop(0) if self.batches else []

    def rest(self, ended):
        yield from self.late

    def close(self):
        self.closed = True


class Elsewhere:
    """A backend whose jobs run on other machines."""

    def __init__(self, home, record, pace=0.0):
        self.home, self.record, self.pace = home, record, Pace(pace, pace, 1.0)
        self.events_of_job = self.logs_of_job = FileLogs(())

    def describe(self, name):
        return self.record

    def events(self, name):
        return self.events_of_job

    def logs(self, name):
        return self.logs_of_job


def record(**columns):
    return JobRecord(**{"name": "a", "backend": "ssh", "plan": PLAN, "created": 1.0, "service": "{}", **columns})


def metric(value):
    return {"kind": "metrics", "t": 2.0 + value, "name": "loss", "values": [value]}


def last(job):
    return job.data()["metrics"][0]["lines"][0]["y"][-1]


def test_a_job_of_machines_is_read_as_it_grows_and_to_its_end(tmp_path):
    backend = Elsewhere(Home(tmp_path), record())
    backend.events_of_job = Source([[metric(1.0)]], late=[[metric(3.0)]])
    backend.logs_of_job = Source([[LogLine("algo-1", 0, AT, "one")], [LogLine("algo-1", 1, AT, "two")]])
    job = LiveJob("a", backend)
    job.look()
    assert last(job) == 1.0
    assert [line["text"] for line in job.log(Choice(rank=1), count=9)["lines"]] == ["two"]
    backend.events_of_job.batches.append([metric(2.0)])
    version = job.version
    job.look()
    assert (last(job), job.version) == (2.0, version + 1)
    backend.record = replace(backend.record, status="Completed", ended=9.0)
    job.look()
    assert (last(job), job.over) == (3.0, True)
    job.close()
    assert backend.events_of_job.closed
    assert backend.logs_of_job.closed


def test_a_service_is_asked_at_its_own_pace_and_never_waited_for(tmp_path):
    backend = Elsewhere(Home(tmp_path), record(backend="sagemaker"), pace=3600.0)
    backend.events_of_job = Source([[metric(1.0)]], late=["nobody reads these"])
    backend.logs_of_job = Source([])
    job = LiveJob("a", backend)
    job.look()
    backend.record = replace(backend.record, status="Completed", ended=9.0)
    assert not job.look().done
    job._next_look = 0.0
    assert job.look().done
    assert last(job) == 1.0


def test_a_job_that_is_being_submitted_is_read_from_its_machines_later(tmp_path):
    backend = Elsewhere(Home(tmp_path), record(service=None))
    backend.events_of_job = Source([])
    job = LiveJob("a", backend)
    job.look()
    first, backend.events_of_job = backend.events_of_job, Source([[metric(1.0)]])
    backend.logs_of_job = Source([])
    backend.record = record()
    job.look()
    assert first.closed
    assert last(job) == 1.0
