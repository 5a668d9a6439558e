"""One container as its controller sees it: frames, the engine's answer about its end, and an engine that goes away."""

import json
import os
import socket

import pytest

from herringbone.controller.containers.files import clear_layers
from herringbone.controller.containers.site import ContainerHost, Containers, Frames
from herringbone.engine.client import EngineRefusal
from herringbone_contract.errors import EngineError


def frame(kind, text):
    return bytes([kind, 0, 0, 0]) + len(text).to_bytes(4, "big") + text


@pytest.mark.parametrize("size", [1, 3, 8, 9, 1000])
def test_frames_are_removed_wherever_the_stream_is_cut(size):
    stream = frame(1, b"[algo-1:0] loss\n") + frame(2, b"oops\n") + frame(1, b"") + frame(1, b"end\n")
    frames = Frames()
    chunks = [stream[start : start + size] for start in range(0, len(stream), size)]
    assert b"".join(frames.text(piece) for piece in chunks) == b"[algo-1:0] loss\noops\nend\n"


class Engine:
    """Answers from a table of requests; an error is raised."""

    def __init__(self, **answers):
        self.answers = answers
        self.asked = []
        self.signals = []

    def _answer(self, path):
        verb = path.rpartition("/")[2]
        self.asked.append(verb)
        answer = self.answers.get(verb)
        answer = answer.pop(0) if isinstance(answer, list) else answer
        if isinstance(answer, Exception):
            raise answer
        return answer

    def get(self, path):
        return self._answer(path)

    def stream(self, method, path, query):
        assert {"since", "until"} <= query.keys()
        return self._answer(path) or []

    def post(self, path, **query):
        self.signals += query.values()
        return self._answer(path)


def host(engine, answer=None):
    """A host; `answer` is the engine's answer on the connection that waits for the end."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    if answer is not None:
        theirs.sendall(answer)
    theirs.close()
    config = {"id": "a1", "stream": 99, "ending": ours.detach(), "fetched": {}}
    container = ContainerHost({"name": "algo-1", "base": ""}, None, config, engine, reads_line=True)
    container.output = None
    return container


def ended(code):
    return json.dumps({"Error": None, "StatusCode": code}).encode()


def take(container):
    code = None
    while code is None:
        code = container.take_ending()
    assert container.ending is None
    return code


def state(**fields):
    return {"State": fields, "HostConfig": {"Memory": 64 << 20}}


def test_the_exit_code_is_the_engines():
    assert take(host(Engine(), ended(3))) == 3


def test_the_end_is_awaited_without_blocking():
    """The engine starts its answer at once. A controller that waited for the rest wrote no log and took no stop."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    container = host(Engine(), ended(0))
    os.close(container.ending)
    container.ending = ours.detach()
    with theirs:
        assert container.take_ending() is None
        theirs.sendall(ended(7)[:5])
        assert [container.take_ending() for _ in range(2)] == [None, None]
        theirs.sendall(ended(7)[5:])
    assert take(container) == 7


def test_an_engine_that_went_away_is_the_cause():
    container = host(Engine(json=EngineError("does not answer")))
    assert take(container) == 137
    assert container.cause == "the container engine went away while the job ran, and took the container with it"


def test_a_container_that_stopped_because_its_connection_broke_keeps_its_code():
    assert take(host(Engine(json=state(ExitCode=143)))) == 143
    assert take(host(Engine(json=state(ExitCode=0, Running=True)))) == 137


def test_lack_of_memory_is_the_cause():
    """The kernel's out-of-memory event reaches the engine on another path than the end, and a little later."""
    container = host(Engine(json=[state(OOMKilled=False), state(OOMKilled=True), state()]), ended(137))
    container.exit_code = take(container)
    container.explain()
    assert container.cause == "out of memory: the container may use 64 MiB"


@pytest.mark.parametrize(("code", "signal", "others"), [(143, "15", True), (137, "9", True), (143, "9", False)])
def test_a_signal_that_somebody_else_had_the_engine_send_is_the_cause(code, signal, others):
    """The words "exit code 143, killed by SIGTERM" did not say that somebody had stopped the container."""
    sent = [{"Actor": {"Attributes": {"signal": signal}}}]
    container = host(Engine(events=[sent], json=state()), ended(code))
    container.exit_code = take(container)
    container.explain()
    assert (container.cause.startswith("somebody other than Herringbone"), container.lost) == (others, others)


def test_a_signal_of_herringbone_is_nobody_elses():
    container = host(Engine(events=[[{"Actor": {"Attributes": {"signal": "15"}}}]], json=state()), ended(143))
    container.signal(15)
    container.exit_code = take(container)
    container.explain()
    assert container.cause == ""


def test_a_host_that_stopped_just_before_its_engine_went_away_has_that_cause():
    """The engine still reported exit code 143, although nobody had requested a stop."""
    container = host(Engine(json=EngineError("does not answer")), ended(143))
    container.exit_code = take(container)
    container.explain()
    assert container.cause.startswith("the container engine went away")


def test_another_end_has_no_such_cause():
    container = host(Engine(json=state(OOMKilled=False)), ended(3))
    container.exit_code = take(container)
    container.explain()
    assert container.cause == ""


def test_a_paused_container_is_unpaused_to_be_killed():
    """A paused process gets a signal only when it continues."""
    engine = Engine(kill=[EngineRefusal(409, "is paused"), None], json=state(Paused=True))
    container = host(engine)
    container.signal(15)
    assert engine.asked == ["kill", "json", "unpause", "kill"]
    os.close(container.ending)


@pytest.mark.parametrize("error", [EngineRefusal(404, "no such container"), EngineRefusal(409, "is not running")])
def test_a_signal_to_a_container_that_is_gone_is_no_error(error):
    container = host(Engine(kill=error, json=state(Paused=False)))
    container.signal(9)
    os.close(container.ending)


def test_a_signal_without_an_engine_is_reported_in_the_controllers_log(capsys):
    container = host(Engine(kill=EngineError("does not answer")))
    container.signal(9)
    assert "algo-1: signal 9: does not answer" in capsys.readouterr().err
    os.close(container.ending)


@pytest.mark.parametrize("paused", [False, True])
def test_a_stopped_host_goes_on_when_another_has_failed(paused):
    # The others named a stopped supervisor after 16 s, and the job ended after 141 s.
    engine = Engine(json=[state(Paused=paused)])
    site = Containers({"hosts": [], "retries": 0, "logs": ""}, {"engine": "unix:///nowhere", "containers": {}})
    site.hosts = [host(engine)]
    site.on_host_failure()
    os.close(site.hosts[0].ending)
    assert engine.asked == ["json", *["unpause"] * paused, "kill"]
    assert engine.signals == ["SIGCONT"]


def test_what_the_kernel_keeps_in_a_layer_is_removed_by_a_container_of_root(tmp_path):
    """A file of root's in a folder of root's: the user's `rm` could not remove a job that had changed its input."""
    requests = []

    class Recorder(Engine):
        def post(self, path, body=None, **query):
            requests.append((path, body))
            return {"Id": "a1"}

        def delete(self, path, **query):
            requests.append((path, None))

    empty, kept = (tmp_path / host / "training/work/work" for host in ("algo-1", "algo-2"))
    empty.mkdir(parents=True)
    (kept / "#1f64").mkdir(parents=True)
    clear_layers(Recorder(), str(tmp_path), "sha256:0a")
    assert not empty.exists()
    assert [path for path, _ in requests] == [
        "/containers/create",
        "/containers/a1/start",
        "/containers/a1/wait",
        "/containers/a1",
    ]
    request = requests[0][1]
    assert [*request["Entrypoint"], *request["Cmd"]] == ["rm", "-rf", "--", "/layers/algo-2/training/work/work"]
    assert (request["User"], request["HostConfig"]["NetworkMode"]) == ("0", "none")
