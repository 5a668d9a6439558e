"""Ask a job's supervisors: who is waited for, what ends the wait, and who must not get the signal."""

import os
import signal

import pytest

from herringbone.access.requests import FolderAnswers, NewEvents, ask, way_into
from herringbone.backends.process.backend import ProcessBackend
from herringbone.backends.sagemaker.backend import SageMakerBackend
from herringbone.records.home import JobFolder
from herringbone.records.index import JobIndex, JobRecord
from herringbone.system.processes import identity, place
from herringbone_contract.errors import RequestError, UnsupportedError
from herringbone_contract.events.format import encode
from herringbone_contract.events.requests import parse


class Backend:
    """Two hosts; `answers` are the events that come, one list a read."""

    def __init__(self, *answers, status="InProgress"):
        self.answers, self.status, self.asked = list(answers), status, []

    def describe(self, name):
        plan = '{"hosts": [{"name": "algo-1"}, {"name": "algo-2"}]}'
        return JobRecord(name=name, backend="x", plan=plan, created=0.0, status=self.status)

    def ask(self, name, request):
        self.asked.append(request)
        return self

    def access(self, name, host):
        return f"the way to {host}"

    def read(self):
        events = self.answers.pop(0) if self.answers else []
        return [{"kind": "answer", "t": 1.0, "id": self.asked[0]["id"], **event} for event in events]

    def close(self):
        self.asked.append("closed")


def test_each_host_is_waited_for():
    backend = Backend([{"host": "algo-1"}], [], [{"host": "algo-2", "text": "x"}, {"host": "algo-1", "id": "other"}])
    answers = ask(backend, "a", "debug", rank=3)
    assert sorted(answers) == ["algo-1", "algo-2"]
    assert answers["algo-2"]["text"] == "x"
    assert {name: backend.asked[0][name] for name in ("kind", "rank")} == {"kind": "debug", "rank": 3}
    assert backend.asked[1] == "closed"


def test_an_answer_that_is_enough_ends_the_wait():
    backend = Backend([{"host": "algo-2", "value": {}}])
    assert list(ask(backend, "a", "debug", enough=lambda event: "value" in event)) == ["algo-2"]


def test_some_answers_are_better_than_none():
    assert list(ask(Backend([{"host": "algo-2"}]), "a", "stacks", timeout=0.1)) == ["algo-2"]
    with pytest.raises(RequestError, match=r"job a: no answer from algo-1, algo-2 within 0.1 s"):
        ask(Backend(), "a", "stacks", timeout=0.1)


def test_only_running_jobs_and_their_hosts_are_asked():
    with pytest.raises(RequestError, match="job a is Completed: only a running job"):
        ask(Backend(status="Completed"), "a", "stacks")
    with pytest.raises(RequestError, match="no host algo-3; its hosts are algo-1, algo-2"):
        ask(Backend(), "a", "stacks", hosts=["algo-3"])
    with pytest.raises(RequestError, match="job a is Failed"):
        way_into(Backend(status="Failed"), "a")
    with pytest.raises(RequestError, match="no host x"):
        way_into(Backend(), "a", "x")
    assert way_into(Backend(), "a") == ("algo-1", "the way to algo-1")


def test_a_job_that_ends_meanwhile_ends_the_wait():
    backend = Backend()
    first = backend.describe("a")
    records = [first]
    backend.describe = lambda name: (
        records.pop() if records else JobRecord(name=name, backend="x", plan=first.plan, created=0.0, status="Stopped")
    )
    with pytest.raises(RequestError, match="job a ended before it answered: it is Stopped"):
        ask(backend, "a", "stacks", timeout=5, look_seconds=0.0)


def test_a_controller_without_the_folder_of_requests_gets_no_signal(home):
    """A controller of an earlier release would die of SIGUSR1."""
    home.make()
    child = os.fork()
    if not child:
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
        signal.pause()
        os._exit(0)
    try:
        record = JobRecord(
            name="old",
            backend="local_process",
            plan='{"hosts": [{"name": "algo-1"}]}',
            created=0.0,
            controller=identity(child),
            place=place(),
        )
        JobIndex(home.index).add(record)
        (home.path / "jobs" / "old" / "logs").mkdir(parents=True)
        with pytest.raises(RequestError, match="takes no requests: an earlier release"):
            ask(ProcessBackend(home, ("supervisor",)), "old", "stacks")
        assert os.waitpid(child, os.WNOHANG) == (0, 0)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_request_is_a_private_file_and_new_events_are_answers(tmp_path):
    folder = JobFolder(tmp_path)
    folder.requests.mkdir()
    folder.logs.mkdir()
    old, new = {"kind": "sample", "t": 1.0}, {"kind": "answer", "t": 2.0, "id": "x"}
    folder.events("algo-1").write_bytes(encode(old))
    nudges = []
    answers = FolderAnswers(
        folder, ["algo-1", "algo-2"], {"id": "00ff00ff00ff00ff", "kind": "debug"}, lambda: nudges.append(1)
    )
    (file,) = folder.requests.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert parse(file.read_bytes()) == {"id": "00ff00ff00ff00ff", "kind": "debug"}
    with folder.events("algo-1").open("ab") as events:
        line = encode(new)
        events.write(line[:10])
        events.flush()
        assert answers.read() == []
        events.write(line[10:])
    folder.events("algo-2").write_bytes(encode(new))
    assert answers.read() == [new, new]
    # The controller has not taken the request: the next signal may find it awake.
    answers._next_nudge = 0.0
    answers.read()
    assert len(nudges) == 2
    answers.close()
    assert list(folder.requests.iterdir()) == []


def test_a_file_of_events_may_come_later(tmp_path):
    events = NewEvents(tmp_path / "a.events")
    assert events.read() == []
    (tmp_path / "a.events").write_bytes(encode({"kind": "bill", "t": 1.0}))
    assert events.read() == [{"kind": "bill", "t": 1.0}]


def test_sagemaker_lets_nobody_in_and_says_what_to_do(home):
    backend = SageMakerBackend(home=home)
    with pytest.raises(UnsupportedError, match=r"instance_type='local'.*enable_remote_debug=True"):
        backend.ask("a", {"id": "00ff00ff00ff00ff", "kind": "debug"})
    with pytest.raises(UnsupportedError, match=r"aws ssm start-session --target sagemaker-training-job:a_algo-1"):
        backend.access("a", "algo-1")
