"""The exporter: batches, retries, its place, and the end of the job; against a tracker in memory."""

import json
import time
from functools import partial

import pytest

from herringbone.trackers.exporter import BATCH, Exporter
from herringbone.trackers.facts import facts_of
from herringbone.trackers.notices import Notices
from herringbone.trackers.place import JobRemovedError, Place
from herringbone_contract.errors import InputError, TrackerError

TO = "mlflow:http://ml:5000/digits"
DOWN = TrackerError("MLflow: connection refused", transient=True)


def metrics(*values, name="loss"):
    return {"kind": "metrics", "t": 10.0, "rank": 0, "name": name, "source": "script", "values": list(values)}


class Job:
    """A job whose events arrive in `reads`, one list a look; it is over after the last one."""

    def __init__(self, *reads, over=True):
        self.reads, self.ends = [list(events) for events in reads], over

    def over(self):
        return self.ends and len(self.reads) <= 1

    def facts(self):
        status = "Completed" if self.over() else "InProgress"
        return facts_of({"TrainingJobName": "a", "TrainingJobStatus": status}, backend="local", created=1.0)

    def rest(self):
        yield from iter(self.read, [])

    def read(self):
        if self.reads and self.reads[0]:
            events, self.reads[0] = self.reads[0], []
            return events
        if len(self.reads) > 1:
            self.reads.pop(0)
        return []


class Tracker:
    """Keeps what it gets; each of `errors` is raised by one call of `log`."""

    def __init__(self, *errors):
        self.errors, self.batches, self.begun, self.ends, self.closed = list(errors), [], [], [], 0
        self.state = {}

    def begin(self, facts, state):
        self.begun.append(dict(state))
        self.state = {"run": "r1", "address": "http://ml/r1"}

    def log(self, points):
        if self.errors and (error := self.errors.pop(0)):
            raise error
        self.batches.append([point.value for point in points])

    def end(self, facts):
        self.ends.append(facts.status)

    def close(self):
        self.closed += 1


@pytest.fixture
def export(tmp_path):
    place, pauses, said = Place(tmp_path, "mlflow-1"), [], []

    def run(job, tracker, **how):
        exporter = Exporter(job, lambda: tracker, place, TO, sleep=pauses.append, say=said.append)
        return exporter.run(**how)

    run.place, run.pauses, run.said = place, pauses, said
    return run


def stored(export):
    return export.place.read(TO)


def test_values_are_sent_in_batches_and_once(export):
    job, tracker = Job([metrics(*[0.5] * 600) for _ in range(4)]), Tracker()
    first = export(job, tracker)
    assert [len(batch) for batch in tracker.batches] == [1200, 1200]
    assert max(map(len, tracker.batches)) < 2 * BATCH
    assert (first.values, first.total, first.run, first.over) == (2400, 2400, "http://ml/r1", True)
    assert tracker.ends == ["Completed"]
    second = Tracker()
    again = export(Job([metrics(*[0.5] * 600) for _ in range(4)] + [metrics(1.0)]), second)
    assert (again.values, again.total) == (1, 2401)
    # The run goes on, and learns the end once more.
    assert second.begun == [{"run": "r1", "address": "http://ml/r1"}]
    assert second.ends == ["Completed"]


def test_nothing_new_asks_no_tracker(export):
    export(Job([metrics(1.0)]), Tracker())
    unused = Tracker()
    assert export(Job([metrics(1.0)]), unused).values == 0
    assert unused.begun == []


def test_an_export_of_a_running_job_leaves_the_run_open(export):
    tracker = Tracker()
    result = export(Job([metrics(1.0)], over=False), tracker)
    assert (result.values, result.over, tracker.ends, tracker.closed) == (1, False, [], 1)


def test_a_transient_error_is_tried_again_and_noted(export):
    tracker = Tracker(DOWN, DOWN)
    notes = []

    def sleep(pause):
        notes.append(stored(export).error)

    Exporter(Job([metrics(1.0)]), lambda: tracker, export.place, TO, sleep=sleep).run()
    assert notes == ["MLflow: connection refused; retrying"] * 2
    assert tracker.batches == [[1.0]]
    assert stored(export).error == ""


def test_after_the_jobs_end_patience_ends(export):
    tracker = Tracker(*[DOWN] * 100)
    with pytest.raises(TrackerError):
        export(Job([metrics(1.0)]), tracker, patience=10.0)
    assert 10 <= sum(export.pauses) < 40
    # Once, and not after each try.
    assert export.said == ["MLflow: connection refused; retrying"]
    assert stored(export).error == "MLflow: connection refused"
    # The next call sends what is missing.
    again = Tracker()
    assert export(Job([metrics(1.0)]), again).values == 1
    assert again.batches == [[1.0]]


def test_a_permanent_error_ends_at_once(export):
    with pytest.raises(TrackerError):
        export(Job([metrics(1.0)]), Tracker(TrackerError("MLflow: 401")))
    assert export.pauses == []
    assert stored(export).error == "MLflow: 401"


def test_a_live_export_waits_as_long_as_the_job_runs(export):
    """A tracker that is away for hours costs the job nothing, and the job's end is exported."""
    reads = [[metrics(float(number))] for number in range(3)]
    job, tracker = Job(*reads), Tracker(*[DOWN] * 50)
    result = export(job, tracker, follow=True, patience=10.0)
    assert tracker.batches == [[0.0], [1.0], [2.0]]
    assert (result.values, tracker.ends) == (3, ["Completed"])
    assert sum(export.pauses) > 1000


def test_a_live_export_opens_the_run_before_the_first_value(export):
    tracker = Tracker()
    export(Job([]), tracker, follow=True)
    assert (tracker.begun, tracker.ends) == ([{}], ["Completed"])


def test_a_removed_job_ends_its_exporter(export, tmp_path):
    def remove(pause):
        for path in export.place.log.parent.iterdir():
            path.unlink()
        export.place.log.parent.rmdir()

    folder = tmp_path / "exports"
    folder.mkdir()
    export.place = place = Place(folder, "mlflow-1")
    exporter = Exporter(Job([metrics(1.0)]), lambda: Tracker(*[DOWN] * 9), place, TO, sleep=remove)
    with pytest.raises(JobRemovedError):
        exporter.run(follow=True)
    assert not folder.exists()


def test_two_processes_do_not_export_to_one_destination(tmp_path):
    place = Place(tmp_path, "mlflow-1")
    with place.held("a"), pytest.raises(InputError, match="job a: another process exports it"), place.held("a"):
        pass
    with place.held("a"):
        pass


@pytest.mark.parametrize("text", ["", "{", "[]", '{"destination": 3, "rows": 3', json.dumps({"unknown": 1})])
def test_a_damaged_place_is_as_none(tmp_path, text):
    (tmp_path / "mlflow-1.json").write_text(text)
    assert Place(tmp_path, "mlflow-1").read(TO).rows == []


def test_the_first_note_of_the_client_does_not_replace_that_of_the_exporter(tmp_path):
    place = Place(tmp_path, "mlflow-1")
    state = place.read(TO)
    state.values = 5
    place.write_first(state)
    assert place.read(TO).values == 5
    state.values = 0
    place.write_first(state)
    assert place.read(TO).values == 5


def test_a_notice_that_was_sent_and_not_noted_is_sent_once_more(tmp_path):
    """A process that is killed between the two: nobody can know whether the notice has arrived."""
    events = [{"kind": "restart", "t": 5.0, "attempt": number, "why": "x"} for number in (2, 3)]
    ids = []

    class Sender(Tracker):
        def log(self, notices):
            ids.extend(notice.id for notice in notices)
            if ids == ["restarted-2", "restarted-3"]:
                raise SystemExit("killed")

    def run():
        fold = partial(make_notices, {}, created=1.0)
        return Exporter(Job(list(events)), Sender, Place(tmp_path, "notify-1"), "webhook x", fold=fold).run()

    with pytest.raises(SystemExit):
        run()
    # One that was noted is not sent again, and the end is a notice, too.
    assert run().values == 2
    assert ids == ["restarted-2", "restarted-3", "restarted-3", "end"]
    assert run().values == 0


def make_notices(plan, rows, *, created):
    return Notices(plan, created=created, rows=rows)


def test_what_time_alone_makes_is_sent_while_the_job_runs(tmp_path):
    sent = []

    class Sender(Tracker):
        def log(self, notices):
            sent.extend((notice.id, len(notices)) for notice in notices)

    plan = {"hourly_cost": 3.6, "options": {"max_cost": 1.0, "max_run": 60}}
    began = time.time() - 900.0
    progress = {"kind": "progress", "t": time.time(), "done": 1, "total": 2, "unit": "step", "eta": 500.0}
    job = Job([{"kind": "state", "t": began, "state": "Training"}, progress], [], over=True)
    fold = partial(make_notices, plan, created=began)
    Exporter(job, Sender, Place(tmp_path, "notify-1"), "webhook x", fold=fold, sleep=lambda _: None).run(follow=True)
    # Each alone, so that each is noted before the next one.
    assert sent == [("budget", 1), ("late-limit", 1), ("end", 1)]
