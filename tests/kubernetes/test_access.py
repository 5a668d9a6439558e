"""Looking into a running job: requests and answers by literals, and all ways in on the real cluster."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from herringbone.access.requests import ask, way_into
from herringbone.backends.kubernetes.access import PodAccess, PodAnswers
from herringbone.backends.kubernetes.attempts.orders import stop_hosts
from herringbone.backends.kubernetes.names import ObjectNames
from herringbone.backends.kubernetes.states import PodState
from herringbone.backends.registry import backend_of_job
from herringbone_contract.errors import KubernetesError, RequestError
from tests.conftest import run
from tests.shells import SCRIPT, WORDS, on_terminal, shell, through
from tests.waiting import wait_until

REQUEST = {"id": "00ff00ff00ff00ff", "kind": "debug", "rank": 1, "hosts": ["algo-1"]}
RUNNING = PodState("algo-1", "pod-1", "running")


def event(**members: object) -> bytes:
    return b"[algo-1] \x1e" + json.dumps({"kind": "answer", "t": 1.0, "id": REQUEST["id"], **members}).encode() + b"\n"


class Program:
    def __init__(self, output: bytes, code: int) -> None:
        self.output, self.exit_code = output, code

    def read_all(self, seconds: float) -> bytes:
        return self.output

    def close(self) -> None:
        pass


class Api:
    """Answers as the API server does: a program's end, and a log that has an answer once the request came."""

    def __init__(self, *, code: int = 0, output: bytes = b"", log: bytes | KubernetesError = b"") -> None:
        self.code, self.output, self.log = code, output, log
        self.asked: list[Any] = []

    def stream(self, place: tuple[str, str, str], command: list[str], **_: Any) -> Any:
        self.asked.append((place, command[3]))
        return Program(self.output, self.code)

    def text(self, path: str, **query: str) -> bytes:
        assert (path, query["container"]) == ("api/v1/namespaces/a/pods/pod-1/log", "host")
        if isinstance(self.log, KubernetesError):
            raise self.log
        return self.log

    def call(self, *_: Any, **__: Any) -> Any:
        raise AssertionError

    def run(self, *_: Any, **__: Any) -> str:
        raise AssertionError


def answer_of(api: Api, pod: PodState | None = RUNNING) -> dict[str, Any]:
    answers, found = PodAnswers(api, "a", {"algo-1": pod, "algo-2": None}, REQUEST), []
    try:
        wait_until(lambda: found.extend(answers.read()) or found, 10)
    finally:
        answers.close()
    return found[0]


def test_an_answer_is_found_in_the_log_of_the_pod_that_was_asked() -> None:
    log = b"a line\n" + event(id="11ff00ff00ff00ff") + b"[algo-1:0] \x1e" + event(text="forged")[10:] + event(text="x")
    api = Api(log=log + event(text="no end of line yet")[:-1])
    answer = answer_of(api)
    assert (answer["host"], answer["text"]) == ("algo-1", "x")
    # One pod alone, and one whole line.
    ((place, line),) = api.asked
    assert place == ("a", "pod-1", "host")
    assert line.endswith("\n")
    assert json.loads(line) == REQUEST


@pytest.mark.parametrize(
    ("api", "pod", "error"),
    [
        (Api(), None, "algo-1: its pod does not run: there is none"),
        (Api(), RUNNING._replace(phase="waiting", why="no node"), "its pod does not run: it is waiting: no node"),
        (Api(code=3), RUNNING, "pod pod-1: its supervisor only starts; try again in a moment"),
        (Api(code=2, output=b"sh: no space"), RUNNING, "pod pod-1: sh: no space"),
        (Api(log=KubernetesError("gone", status=404)), RUNNING, "gone"),
    ],
)
def test_a_pod_that_cannot_be_asked_answers_why(api: Api, pod: PodState | None, error: str) -> None:
    assert error in answer_of(api, pod)["error"]


class Struck:
    """The program of a fault, whose pod may end with it."""

    def __init__(self, code: int | None) -> None:
        self.code = code

    def pieces(self) -> list[Any]:
        if self.code is None:
            raise KubernetesError("cut")
        return []

    @property
    def exit_code(self) -> int | None:
        return self.code

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("kind", "code", "answer"),
    [("rank", 0, 0), ("rank", 10, 10), ("rank", None, 1), ("lost", 137, 0), ("lost", None, 0), ("lost", 10, 10)],
)
def test_a_pod_that_a_fault_ends_has_been_struck(kind: str, code: int | None, answer: int) -> None:
    class Striking(Api):
        def stream(self, place: tuple[str, str, str], command: list[str], **_: Any) -> Any:
            assert command[-2:] == [kind, "2.0"]
            return Struck(code)

    assert PodAccess(Striking(), "a", "pod-1").strike(kind, 2.0) == answer


def test_a_pod_that_hangs_keeps_nobody() -> None:
    hangs, ended = threading.Event(), threading.Event()

    class Hanging(Api):
        def stream(self, *_: Any, **__: Any) -> Any:
            hangs.set()
            ended.wait(30)
            raise KubernetesError("too late")

    answers = PodAnswers(Hanging(), "a", {"algo-1": RUNNING}, REQUEST)
    assert hangs.wait(10)
    assert answers.read() == []
    answers.close()
    ended.set()


@pytest.mark.parametrize(("phases", "is_stopped"), [(["Running", "Failed"], True), (["Running"], False)])
def test_a_pod_that_ends_while_it_is_stopped_is_no_error(phases, is_stopped) -> None:
    """The first host's end ends the second one, whose state is seen later."""
    states, last = iter(phases), phases[-1]

    class Stopping(Api):
        def call(self, method: str, path: str, body: Any = None, **_: Any) -> Any:
            phase = next(states, last)
            container = {"name": "host", "state": {"running": {}}}
            ended = {"name": "host", "state": {"terminated": {"exitCode": 137}}}
            status = {"phase": phase, "containerStatuses": [container if phase == "Running" else ended]}
            labels = {"host": "algo-1", "part": "host", "attempt": "1"}
            metadata = {"name": "pod-1", "labels": {f"dev.herringbone/{name}": text for name, text in labels.items()}}
            return {"items": [{"metadata": metadata, "spec": {}, "status": status}]}

        def run(self, *_: Any, **__: Any) -> str:
            raise KubernetesError("cannot exec in a stopped container")

    with contextlib.nullcontext() if is_stopped else pytest.raises(KubernetesError, match="stopped container"):
        stop_hosts(Stopping(), "a", ObjectNames("digits"), 1.0, is_set=False, seconds=30.0 if is_stopped else 0.0)


@pytest.mark.kubernetes
def test_a_running_job_can_be_looked_into(submit: Callable[..., Any]) -> None:
    job = submit(SCRIPT)
    backend = backend_of_job(job.name)
    source = backend.logs(job.name)
    lines: list[str] = []
    wait_until(lambda: lines.extend(line.text for line in source.read()) or lines.count("ready") == 2, 60)
    # Both streams, the end of the input and the exit code come through.
    result = shell(job.name, "--host", "algo-2", "--", "python3", "-c", WORDS, input="typed")
    assert (result.returncode, result.stdout, result.stderr) == (1, "/opt/ml/code algo-2\n", "typed\n")
    result = shell(job.name, "--", "$HOME", input="")
    assert (result.returncode, result.stderr) == (127, "herringbone: $HOME: no such program on this host\n")
    waits = b"trap 'exit 4' INT; stty size; echo wai''ting; while true; do sleep 0.1; done\n"
    code, shown = on_terminal(job.name, [("$ ", waits), ("waiting", b"\x03")])
    assert code == 4, shown
    assert "40 100" in shown

    assert "connection, _ = server.accept()" in job.stacks().text
    answers = ask(backend, job.name, "dance")
    assert sorted(answers) == ["algo-1", "algo-2"]
    assert all("knows no request" in answer["error"] for answer in answers.values())
    # The image has no debugpy.
    result = run(sys.executable, "-m", "herringbone", "debug", job.name, "--rank", "1")
    assert "algo-2: rank 1: debugpy cannot be imported there" in result.stderr
    _, access = way_into(backend, job.name, "algo-2")
    assert through(access, 5678, b"hello") == b"HELLO"
    top = run(sys.executable, "-m", "herringbone", "top", "--once")
    assert job.name in top.stdout, top.stderr
    job.stop(0)
    with pytest.raises(RequestError, match="its hosts are gone"):
        way_into(backend, job.name)
