"""What is heard of machines, and when they are given up: by a clock and a road of the test's own."""

from __future__ import annotations

import pytest

from herringbone.backends.ssh.follow import ANSWER_SECONDS, Following
from herringbone.backends.ssh.inventory import Machine
from herringbone.backends.ssh.job_state import judge_job
from herringbone.backends.ssh.logs import RemoteLogs
from herringbone_contract.errors import HostError
from herringbone_contract.failure import lost_contact

TRAINING = {"status": "InProgress", "secondary_status": "Training", "ended": None, "failure": None}
LOST = {
    "status": "Failed",
    "secondary_status": "Failed",
    "ended": 1.0,
    "failure": lost_contact("algo-2", "silent for 3 heartbeats of 1 s").to_json(),
}


class FakeVisit:
    """What a machine says; a `HostError` among it ends the visit."""

    def __init__(self):
        self.coming, self.asked = [], []

    def send(self, message):
        self.asked.append(message["ask"])
        return len(self.asked)

    def messages(self):
        found, self.coming = self.coming, []
        if found and isinstance(found[-1], Exception):
            raise found[-1]
        return [(message, b"") for message in found]

    def hang_up(self):
        pass

    def close(self, *, patiently=True):
        self.asked.append("goodbye" if patiently else "end")


class World:
    """Two machines, and what time it is."""

    def __init__(self):
        self.now = 100.0
        self.visits = {"h-1": FakeVisit(), "h-2": FakeVisit()}
        machines = {"algo-1": Machine(name="h-1"), "algo-2": Machine(name="h-2")}
        self.following = Following("digits-1", machines, self, clock=lambda: self.now)

    def visit(self, machine):
        return self.visits[machine.name]

    def hear(self, machine, *messages, after=0.0):
        self.now += after
        self.visits[machine].coming += messages
        self.following.look()


@pytest.fixture
def world():
    made = World()
    for name in made.visits:
        made.hear(name, {"row": TRAINING, "now": 0.0})
    return made


def test_a_machine_that_others_lost_and_that_does_not_answer_is_lost_at_once(world):
    world.hear("h-1", {"row": LOST, "record": LOST["failure"], "now": 1.0}, after=60)
    assert world.visits["h-2"].asked[-1] == "owner"
    world.hear("h-1", after=ANSWER_SECONDS - 0.01)
    assert not world.following.is_over
    world.hear("h-1", after=0.02)
    assert world.following.is_over
    assert judge_job(world.following.states).failure.message == (
        "lost contact with algo-2 (silent for 3 heartbeats of 1 s): h-2 cannot be reached: it does not answer"
    )
    world.following.close()
    assert [visit.asked[-1] for visit in world.visits.values()] == ["goodbye", "end"]


def test_a_machine_that_others_lost_and_that_answers_has_its_say(world):
    world.hear("h-1", {"row": LOST, "now": 1.0})
    world.hear("h-2", {"answer": 3, "owner": None}, after=0.5)
    world.hear("h-2", after=0.4)
    assert not world.following.is_over
    killed = {**LOST, "failure": lost_contact("algo-2")._replace(exit_code=137, message="").to_json()}
    world.hear("h-2", {"row": killed, "now": 2.0})
    assert world.following.is_over
    assert judge_job(world.following.states).failure.render() == "algo-2: exit code 137, killed by SIGKILL"


def test_silent_machines_are_said_to_be_waited_for_and_all_of_them_are_not_lost(world, tmp_path):
    logs = RemoteLogs(lambda: (world.following, {}), filed=lambda host: tmp_path / host, close=lambda: None)
    gone = HostError("h-1: no way leads to it")
    world.hear("h-1", gone)
    world.hear("h-2", HostError("h-2: no way leads to it"))
    assert logs.read() == []
    world.hear("h-1", gone, after=3)
    assert [line.text for line in logs.read()] == [
        "h-1 is waited for: no way leads to it",
        "h-2 is waited for: no way leads to it",
    ]
    world.hear("h-1", gone, after=3600)
    assert logs.read() == []
    assert not world.following.is_over
    world.hear("h-2", {"row": TRAINING, "now": 0.0})
    assert [line.text for line in logs.read()] == ["h-2 answers again"]


def test_a_job_that_its_machines_have_forgotten_is_over(world):
    for name in world.visits:
        world.hear(name, {"answer": 1, "refused": "no job 'digits-1' in /work", "kind": "JobNotFoundError"})
    assert world.following.is_over
    assert judge_job(world.following.states).failure.message == "h-1 is there: no job 'digits-1' in /work"
