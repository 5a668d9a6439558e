"""A container as its controller sees it: frames, the engine's word on its end, and an engine that goes away."""

import json
import os
import socket

import pytest

from herringbone.controller.containers import ContainerHost, Frames
from herringbone.engine.client import EngineRefusal
from herringbone_contract.errors import EngineError


def frame(kind, text):
    return bytes([kind, 0, 0, 0]) + len(text).to_bytes(4, "big") + text


@pytest.mark.parametrize("size", [1, 3, 8, 9, 1000])
def test_frames_come_apart_wherever_they_were_cut(size):
    stream = frame(1, b"[algo-1:0] loss\n") + frame(2, b"oops\n") + frame(1, b"") + frame(1, b"end\n")
    frames = Frames()
    cut = [stream[start : start + size] for start in range(0, len(stream), size)]
    assert b"".join(frames.text(piece) for piece in cut) == b"[algo-1:0] loss\noops\nend\n"


class Engine:
    """Answers from a table of requests; an error is raised."""

    def __init__(self, **answers):
        self.answers = answers
        self.asked = []

    def _answer(self, path):
        verb = path.rpartition("/")[2]
        self.asked.append(verb)
        found = self.answers.get(verb)
        found = found.pop(0) if isinstance(found, list) else found
        if isinstance(found, Exception):
            raise found
        return found

    def get(self, path):
        return self._answer(path)

    def post(self, path, **query):
        return self._answer(path)


def host(engine, word=None):
    """A host; `word` is what the engine says on the connection that waits for the end."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    if word is not None:
        theirs.sendall(word)
    theirs.close()
    made = ContainerHost(
        {"name": "algo-1", "base": ""}, None, {"id": "a1", "stream": 99, "ending": ours.detach(), "fetched": {}}, engine
    )
    made.output = None
    return made


def ended(code):
    return json.dumps({"Error": None, "StatusCode": code}).encode()


def take(made):
    code = None
    while code is None:
        code = made.take_ending()
    assert made.ending is None
    return code


def state(**fields):
    return {"State": fields, "HostConfig": {"Memory": 64 << 20}}


def test_the_engine_tells_the_exit_code():
    assert take(host(Engine(), ended(3))) == 3


def test_the_end_is_awaited_without_standing_still():
    """The engine begins its answer at once; a controller that waited for the rest filed no line and heard no stop."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    made = host(Engine(), ended(0))
    os.close(made.ending)
    made.ending = ours.detach()
    with theirs:
        assert made.take_ending() is None
        theirs.sendall(ended(7)[:5])
        assert [made.take_ending() for _ in range(2)] == [None, None]
        theirs.sendall(ended(7)[5:])
    assert take(made) == 7


def test_an_engine_that_went_away_is_the_cause():
    made = host(Engine(json=EngineError("does not answer")))
    assert take(made) == 137
    assert made.cause == "the container engine went away while the job ran, and took the container with it"


def test_a_container_that_stopped_because_its_connection_broke_keeps_its_code():
    assert take(host(Engine(json=state(ExitCode=143)))) == 143
    assert take(host(Engine(json=state(ExitCode=0, Running=True)))) == 137


def test_memory_is_named_as_the_cause():
    """The kernel's word comes on another way than the end, and a little later."""
    made = host(Engine(json=[state(OOMKilled=False), state(OOMKilled=True), state()]), ended(137))
    made.exit_code = take(made)
    made.explain()
    assert made.cause == "out of memory: the container may use 64 MiB"


def test_a_host_that_stopped_before_its_engine_was_missed_has_that_cause():
    """It told its end with its last breath: exit code 143, of nobody's wish."""
    made = host(Engine(json=EngineError("does not answer")), ended(143))
    made.exit_code = take(made)
    made.explain()
    assert made.cause.startswith("the container engine went away")


def test_another_end_has_no_such_cause():
    made = host(Engine(json=state(OOMKilled=False)), ended(3))
    made.exit_code = take(made)
    made.explain()
    assert made.cause == ""


def test_a_paused_container_is_woken_to_be_killed():
    """It stands still, and would hear of the signal when somebody wakes it."""
    engine = Engine(kill=[EngineRefusal(409, "is paused"), None], json=state(Paused=True))
    made = host(engine)
    made.signal(15)
    assert engine.asked == ["kill", "json", "unpause", "kill"]
    os.close(made.ending)


@pytest.mark.parametrize("error", [EngineRefusal(404, "no such container"), EngineRefusal(409, "is not running")])
def test_a_signal_to_a_container_that_is_gone_is_no_error(error):
    made = host(Engine(kill=error, json=state(Paused=False)))
    made.signal(9)
    os.close(made.ending)


def test_a_signal_without_an_engine_is_told_in_the_controllers_log(capsys):
    made = host(Engine(kill=EngineError("does not answer")))
    made.signal(9)
    assert "algo-1: signal 9: does not answer" in capsys.readouterr().err
    os.close(made.ending)
