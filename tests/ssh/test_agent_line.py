"""The agent's part in its machine's line, and what a job claims there; without ssh."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from herringbone import Estimator
from herringbone.backends.ssh.agent.line import MachineLine
from herringbone.backends.ssh.agent.lock import MachineLock
from herringbone.backends.ssh.machines.inventory import Inventory, Machine
from herringbone.backends.ssh.start.line import fitting, place_of, wants_on
from herringbone.records.home import Home
from herringbone_contract.errors import UnsupportedError


class Gpus:
    def __init__(self, use=""):
        self.use = use

    def listing(self):
        return "GPU 0: A (UUID: GPU-0)\nGPU 1: A (UUID: GPU-1)\n"

    def processes(self):
        return self.use


@pytest.fixture
def connect(tmp_path):
    """A function that returns the line of another connection to one machine."""
    home, lines = Home(tmp_path / "work"), []
    home.make()

    def one(use="", **environ):
        variables = {"HERRINGBONE_SLOTS": str(tmp_path / "slots"), **environ}
        line = MachineLine(home, environ=variables, make_probe=lambda: Gpus(use))
        # All connections of the test are one process.
        line.holder += "" if not lines else f"{len(lines)}"
        line.lock = MachineLock(home.path / "lock", alive=lambda *_: True)
        lines.append(line)
        return line

    yield one
    for line in lines:
        line.leave()


def ask(job, **wants):
    return {"job": job, "client": "me@laptop", **wants}


def waits(line, job, mark="a" * 12, arrival=1.0, **wants):
    assert line.enter({**ask(job, **wants), "mark": mark, "arrival": arrival}, b"") == {}
    return line.look({"worst": [0, 0.0]}, b"")


def test_jobs_with_gpus_share_a_machine_and_one_without_has_it_alone(connect):
    first, second, third = connect(), connect(), connect()
    assert [line.claim(ask(job, gpus=1), b"") for line, job in ((first, "a"), (second, "b"))] == [{}, {}]
    assert first.slot.ticket.granted == ("GPU-0",)
    assert third.claim(ask("c", gpus=1), b"")["jobs"] == ["a", "b"]
    assert third.claim(ask("c"), b"") == {"busy": "runs a of me@laptop", "jobs": ["a"]}
    first.leave()
    second.leave()
    assert third.claim(ask("c"), b"") == {}
    assert first.claim(ask("a", gpus=1), b"") == {"busy": "runs c of me@laptop", "jobs": ["c"]}


def test_a_waiting_job_takes_when_it_is_ready_and_gives_back_at_its_place(connect):
    holder, one, two = connect(), connect(), connect()
    holder.claim(ask("holder", gpus=2), b"")
    assert waits(one, "one", gpus=2)["ready"] is False
    assert waits(two, "two", mark="b" * 12, arrival=2.0, gpus=1)["place"] == 2
    holder.leave()
    assert one.look({"worst": [0, 0.0]}, b"") == {
        "number": 0, "turn": one.look({"worst": [0, 0.0]}, b"")["turn"], "ready": True, "place": 1, "rank": 1,
        "text": "1st in line",
    }  # fmt: skip
    assert one.take({}, b"") == {}
    one.give_back({}, b"")
    assert two.look({"worst": [0, 0.0]}, b"")["place"] == 2
    # What its other machines say of it is in its ticket, and puts it behind no later job of its user.
    one.look({"worst": [3, 0.0]}, b"")
    assert one.slot.ticket.number == 3
    assert two.look({"worst": [0, 0.0]}, b"")["number"] == 3
    assert two.look({"worst": [0, 0.0]}, b"")["place"] == 2


def test_a_machine_says_what_it_can_never_serve(connect):
    assert "the job needs 3 GPUs" in connect().enter(ask("a", gpus=3), b"")["never"]
    assert "no line" in connect(HERRINGBONE_SLOTS="off").enter(ask("a", gpus=1), b"")["never"]
    limited = connect()
    assert limited.claim(ask("a", gpus=1, visible="1"), b"") == {}
    assert limited.slot.ticket.granted == ("GPU-1",)


def test_a_job_that_asked_for_nothing_runs_beside_other_programs(connect):
    line = connect("GPU-1, 4711, 9000\n")
    assert line.claim(ask("a"), b"")["busy"] == "process 4711 on GPU-1, outside Herringbone"
    assert line.claim(ask("a", gpus=2), b"")["busy"] == "process 4711 on GPU-1, outside Herringbone"
    assert line.claim(ask("a", beside_foreign=True), b"") == {}
    assert line.slot.ticket.granted == ("GPU-0", "GPU-1", "cpu-share-1")


def test_jobs_with_shares_run_side_by_side_up_to_their_number(connect):
    lines = [connect() for _ in range(3)]
    answers = [line.claim(ask("a", shares=1, cpu_shares=2), b"") for line in lines]
    assert [bool(answer) for answer in answers] == [False, False, True]


def plan(tmp_path: Path, monkeypatch, **options):
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    Path("hosts.yaml").write_text("hosts: [a, b]")
    estimator = Estimator("train.py", instance_type="ssh:hosts.yaml", **options)
    return estimator.plan()


def test_what_a_job_claims_on_a_machine(tmp_path, monkeypatch):
    gpus = plan(tmp_path, monkeypatch, gpus=2, environment={"CUDA_VISIBLE_DEVICES": "0,1"})
    assert wants_on(gpus, Machine(name="a")) == {"gpus": 2, "visible": "0,1"}
    whole = plan(tmp_path, monkeypatch)
    assert [wants_on(whole, Machine(name="a", cpu_shares=shares)) for shares in (None, 3)] == [
        {"beside_foreign": True},
        {"cpu_shares": 3, "shares": 1},
    ]
    small, large = Machine(name="a", gpus=1), Machine(name="b", gpus=8)
    assert fitting(gpus, Inventory(machines=(small, large))).machines == (large,)
    with pytest.raises(UnsupportedError, match="too few machines can ever serve the job:\n  a: it has 1"):
        fitting(gpus, Inventory(machines=(small,)))


def test_a_place_is_that_of_the_machine_that_the_job_waits_for():
    looks = {
        "a": {"ready": False, "place": 5, "text": "5th in line"},
        "b": {"ready": False, "place": 2, "text": "2nd in line"},
    }
    assert place_of(looks, {}, 1) == {"Place": 2, "Text": "2nd in line, on b"}
    assert place_of({}, {"a": "no route"}, 1) == {"Place": 1, "Text": "waits for machines: a does not answer: no route"}


def test_nobody_but_the_users_lock_holder_is_named(tmp_path):
    lock = MachineLock(tmp_path / "lock", alive=lambda *_: True, here="h m b n")
    assert lock.acquire({"job": "a"}, holder="1@1", shared=True) is None
    assert lock.acquire({"job": "b"}, holder="2@2", shared=True) is None
    assert lock.blocker(holder="3@3", shared=True) is None
    assert lock.acquire({"job": "c"}, holder="3@3")["job"] == "a"
    lock.hand_over("1@1", "4@4")
    lock.release("2@2")
    assert lock.owner() == {"job": "a", "holder": "4@4", "place": "h m b n", "shared": True}
    assert os.path.getsize(tmp_path / "lock") > 0
