"""The wait for a job whose service fails for a while, over a backend with scripted answers."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from herringbone.backends.watch import Watch
from herringbone.records.home import Home
from herringbone.records.index import JobRecord
from herringbone.records.logs import LogLine
from herringbone.records.state_lines import StateEvents, why_stopped
from herringbone.system.polling import Pace, Pauses
from herringbone_contract.errors import AwsAccessError, AwsCredentialsError, AwsError, AwsUnavailableError

ROW = JobRecord(name="a", backend="scripted", plan="{}", created=0.0)
DONE = replace(ROW, status="Completed", secondary_status="Completed", ended=9.0)
EXPIRED = AwsCredentialsError("to ask: expired; log in with `aws sso login`")
AWAY = AwsUnavailableError("to ask: AWS does not answer")
DENIED = AwsAccessError("to read the log: access denied")


def line(text):
    return LogLine("algo-1", 0, None, text)


class Scripted:
    """Answers with these rows or lines, or raises these errors, in order; repeats the last one for ever."""

    pace, home = Pace(0.001, 0.001, 1), Home(Path("/no-such-home"))

    def __init__(self, *answers):
        self.answers = list(answers)

    def _next(self):
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def describe(self, name):
        return self._next()

    def read(self):
        return self._next()

    def rest(self, ended):
        yield self._next()


def watched(backend, source=None, **settings):
    messages = []
    watch = Watch(backend, "a", say=messages.append, **settings)
    return [line.text for lines in watch.batches(source) for line in lines], messages


def test_expired_credentials_are_reported_once_and_waited_for():
    backend = Scripted(ROW, EXPIRED, EXPIRED, EXPIRED, ROW, ROW, DONE)
    _, messages = watched(backend)
    assert messages == [
        "to ask: expired; log in with `aws sso login`. The wait for job a goes on",
        "AWS answers again: job a",
    ]


def test_no_line_is_lost_when_the_log_fails_in_between():
    backend = Scripted(ROW, ROW, ROW, ROW, DONE)
    source = Scripted([line("1")], [], AWAY, AWAY, [line("2")], [], [line("3")])
    lines, messages = watched(backend, source)
    assert lines == ["1", "2", "3"]
    assert [text[:27] for text in messages] == ["to ask: AWS does not answer", "AWS answers again: job a"]


def test_a_job_that_was_never_known_is_not_waited_for():
    with pytest.raises(AwsCredentialsError):
        watched(Scripted(EXPIRED))


def test_a_denied_log_is_given_up_after_a_while_and_reported_once():
    rows = [ROW] * 5 + [DONE]
    lines, messages = watched(Scripted(*rows), Scripted(DENIED, [line("late")], [], DENIED), access_patience=60)
    assert (lines, messages) == (["late"], ["to read the log: access denied. Job a is followed without its log"])
    lines, messages = watched(Scripted(*rows), Scripted(DENIED), access_patience=0)
    assert (lines, len(messages)) == ([], 1)
    assert watched(Scripted(*rows), Scripted(AwsError("odd")))[1] == ["odd. Job a is followed without its log"]


def test_a_denied_job_is_waited_for_a_while():
    _, messages = watched(Scripted(DENIED, DENIED, ROW, ROW, DONE), access_patience=60)
    assert messages == ["to read the log: access denied. The wait for job a goes on", "AWS answers again: job a"]
    with pytest.raises(AwsAccessError):
        watched(Scripted(ROW, DENIED), access_patience=0)


def test_the_last_lines_are_waited_for_through_errors():
    assert watched(Scripted(DONE), Scripted(AWAY, [line("last")])) == (
        ["last"],
        ["to ask: AWS does not answer. The wait for job a goes on"],
    )


def test_a_timeout_names_the_last_known_state():
    with pytest.raises(TimeoutError, match=r"job a is still InProgress after 0\.01 s; it goes on"):
        list(Watch(Scripted(ROW, AWAY), "a", say=lambda text: None).batches(None, 0.01))


def test_jitter_shortens_a_pause_by_its_part_at_most():
    pauses = Pauses(Pace(2, 8, 2, jitter=0.25), chance=iter([0, 1, 0.5]).__next__)
    assert [pauses.next() for _ in range(3)] == [2, 3, 7]
    assert 1.5 <= Pauses(Pace(2, 8, 2, jitter=0.25)).next() <= 2


def described(*states):
    transitions = [{"Status": status, "StatusMessage": message} for status, message in states]
    return replace(ROW, description=json.dumps({"SecondaryStatusTransitions": transitions}))


def test_each_state_of_a_service_is_reported_once_with_its_message():
    events = StateEvents()
    first = ("Starting", "Preparing the instances")
    assert events.of(described(("Pending", ""), first), now=0) == ["a: Starting: Preparing the instances"]
    two = (first, ("Downloading", "Downloading input data"))
    assert events.of(described(*two), now=1) == ["a: Downloading: Downloading input data"]
    assert events.of(described(*two), now=2) == []
    assert events.of(described(*two, ("Training", ""), ("Completed", "done")), now=3) == ["a: Training"]


def test_a_state_without_a_service_is_reported_when_it_lasts():
    events = StateEvents()
    uploading = replace(ROW, secondary_status="Uploading")
    states = [(ROW, 0.0), (uploading, 3.0), (uploading, 7.9), (uploading, 8.0), (uploading, 20.0)]
    assert [events.of(row, now=now) for row, now in states] == [[], [], [], ["a: Uploading"], []]
    training = replace(ROW, secondary_status="Training")
    assert events.of(training, now=10) + events.of(training, now=99) == []


@pytest.mark.parametrize(
    ("secondary", "why"),
    [
        ("Stopped", "it was asked to"),
        ("MaxRuntimeExceeded", "max_run was over"),
        ("MaxWaitTimeExceeded", "max_wait was over"),
        ("Interrupted", "its hosts were taken away (spot, or preempted); it can go on from its checkpoints"),
    ],
)
def test_why_a_job_stopped(secondary, why):
    row = replace(ROW, status="Stopped", secondary_status=secondary)
    assert why_stopped(row) == f"job a stopped before its end: {why}"
    assert why_stopped(DONE) is None
