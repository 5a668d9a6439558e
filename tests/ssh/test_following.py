"""Tests of `JobMonitor`: machine states, silence and loss, with a clock and a transport of the test."""

from __future__ import annotations

import pytest

from herringbone.backends.ssh.attempts.job_state import ANSWER_SECONDS, judge_job
from herringbone.backends.ssh.follow.files import RemoteFiles, RemoteLogs
from herringbone.backends.ssh.follow.monitor import JobMonitor
from herringbone.backends.ssh.machines.inventory import Machine
from herringbone_contract.errors import HostError
from herringbone_contract.failure import lost_contact

TRAINING = {"status": "InProgress", "secondary_status": "Training", "ended": None, "failure": None}
LOST = {
    "status": "Failed",
    "secondary_status": "Failed",
    "ended": 1.0,
    "failure": lost_contact("algo-2", "silent for 3 heartbeats of 1 s").to_json(),
}


class FakeConnection:
    """Delivers the messages that a test gives it; a `HostError` among them breaks the connection."""

    def __init__(self):
        self.incoming, self.requests = [], []

    def send(self, message):
        self.requests.append(message["ask"])
        return len(self.requests)

    def messages(self):
        arrived, self.incoming = self.incoming, []
        if arrived and isinstance(arrived[-1], Exception):
            raise arrived[-1]
        return [(message, b"") for message in arrived]

    def disconnect(self):
        pass

    def close(self, *, gracefully=True):
        self.requests.append("close" if gracefully else "kill connection")


class World:
    """Two machines, a transport to them, and a clock."""

    def __init__(self):
        self.now = 100.0
        self.connections = {"h-1": FakeConnection(), "h-2": FakeConnection()}
        machines = {"algo-1": Machine(name="h-1"), "algo-2": Machine(name="h-2")}
        self.monitor = JobMonitor("digits-1", machines, self, clock=lambda: self.now)

    def connect(self, machine):
        return self.connections[machine.name]

    def receive(self, machine, *messages, after=0.0):
        self.now += after
        self.connections[machine].incoming += messages
        self.monitor.look()


@pytest.fixture
def world():
    world = World()
    for name in world.connections:
        world.receive(name, {"row": TRAINING, "now": 0.0})
    return world


def test_a_blamed_machine_that_does_not_answer_is_lost_at_once(world):
    world.receive("h-1", {"row": LOST, "record": LOST["failure"], "now": 1.0}, after=60)
    assert world.connections["h-2"].requests[-1] == "owner"
    world.receive("h-1", after=ANSWER_SECONDS - 0.01)
    assert not world.monitor.is_over
    world.receive("h-1", after=0.02)
    assert world.monitor.is_over
    assert judge_job(world.monitor.states).failure.message == (
        "lost contact with algo-2 (silent for 3 heartbeats of 1 s): h-2 cannot be reached: it does not answer"
    )
    world.monitor.close()
    assert [connection.requests[-1] for connection in world.connections.values()] == ["close", "kill connection"]


def test_a_blamed_machine_that_answers_reports_its_own_failure(world):
    world.receive("h-1", {"row": LOST, "now": 1.0})
    world.receive("h-2", {"answer": 3, "owner": None}, after=0.5)
    world.receive("h-2", after=0.4)
    assert not world.monitor.is_over
    killed = {**LOST, "failure": lost_contact("algo-2")._replace(exit_code=137, message="").to_json()}
    world.receive("h-2", {"row": killed, "now": 2.0})
    assert world.monitor.is_over
    assert judge_job(world.monitor.states).failure.render() == "algo-2: exit code 137, killed by SIGKILL"


def test_the_log_names_silent_machines_and_silence_of_all_ends_no_job(world, tmp_path):
    files = RemoteFiles(lambda: (world.monitor, {}), tmp_path, ("log",), patience=0)
    logs = RemoteLogs(files, close=lambda: None)
    broken = HostError("h-1: there is no route to it")
    world.receive("h-1", broken)
    world.receive("h-2", HostError("h-2: there is no route to it"))
    assert logs.read() == []
    world.receive("h-1", broken, after=3)
    assert [line.text for line in logs.read()] == [
        "waiting for h-1: there is no route to it",
        "waiting for h-2: there is no route to it",
    ]
    world.receive("h-1", broken, after=3600)
    assert logs.read() == []
    assert not world.monitor.is_over
    world.receive("h-2", {"row": TRAINING, "now": 0.0})
    assert [line.text for line in logs.read()] == ["h-2 answers again"]


def test_the_first_look_waits_for_answers_and_for_the_hosts_of_a_job_that_ends():
    world = World()
    times = iter(range(100, 10_000))
    world.monitor = JobMonitor("digits-1", {"algo-1": Machine(name="h-1")}, world, clock=lambda: next(times))
    world.monitor.first_look()
    assert (world.monitor.hosts["algo-1"].state.row, world.connections["h-1"].requests) == (None, ["follow"])
    machines = {"algo-1": Machine(name="h-1"), "algo-2": Machine(name="h-2")}
    world.monitor = JobMonitor("digits-1", machines, world, clock=lambda: next(times))
    world.connections["h-1"].incoming = [{"row": {**TRAINING, "status": "Completed", "ended": 1.0}, "now": 1.0}]
    world.connections["h-2"].incoming = [HostError("h-2: there is no route to it")]
    world.monitor.first_look()
    assert world.monitor.is_over
    assert "h-2 cannot be reached" in judge_job(world.monitor.states).failure.message


def test_a_job_that_its_machines_do_not_know_any_more_is_over(world):
    for name in world.connections:
        world.receive(name, {"answer": 1, "refused": "no job 'digits-1' in /srv/work", "kind": "JobNotFoundError"})
    assert world.monitor.is_over
    assert judge_job(world.monitor.states).failure.message == "h-1 answers: no job 'digits-1' in /srv/work"
