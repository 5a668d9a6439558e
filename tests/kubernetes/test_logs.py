"""The log from the streams of pods: no line lost, none doubled, over any cuts."""

from __future__ import annotations

from typing import Any

import pytest

from herringbone.backends.kubernetes.logs import JobLogs, PodLog
from herringbone_contract.errors import KubernetesError


class Stream:
    """Answers as the API server does: all lines from the second of `sinceTime` on, as far as they are written."""

    def __init__(self, lines: list[str]) -> None:
        self.lines, self.written, self.partial, self.status = lines, 0, "", 0

    def text(self, path: str, **query: str) -> bytes:
        assert path == "api/v1/namespaces/a/pods/p/log"
        if self.status:
            raise KubernetesError("no", status=self.status)
        since = query.get("sinceTime", "").rstrip("Z")
        lines = [line for line in self.lines[: self.written] if line >= since]
        return ("".join(f"{line}\n" for line in lines) + self.partial).encode()

    def call(self, *_: Any, **__: Any) -> Any:
        raise AssertionError

    def stream(self, *_: Any, **__: Any) -> Any:
        raise AssertionError

    def run(self, *_: Any, **__: Any) -> str:
        raise AssertionError


# The kubelet leaves zeros at the end of a stamp out.
STAMPS = ("00:00:01.1Z", "00:00:01.12Z", "00:00:01.12Z", "00:00:01.123Z", "00:00:02Z", "00:00:02.5Z", "00:00:02.5Z")
LINES = [f"2026-11-30T{stamp} [algo-1:0] line {number}" for number, stamp in enumerate(STAMPS)]


@pytest.mark.parametrize("cuts", [(7,), (1, 7), (2, 3, 7), tuple(range(1, 8)), (4, 4, 5, 6, 7)])
def test_every_line_comes_once_and_in_order(cuts: tuple[int, ...]) -> None:
    stream = Stream(LINES)
    log, texts = PodLog(stream, "a", "p", "algo-1"), []
    for stream.written in cuts:
        texts += [line.text for line in log.read()]
    assert texts == [f"line {number}" for number in range(7)]
    assert log.read() == []


def test_a_line_without_its_end_comes_when_it_is_whole() -> None:
    stream = Stream(LINES)
    stream.written, stream.partial = 1, "2026-11-30T00:00:01.12Z [algo-1:0] li"
    log = PodLog(stream, "a", "p", "algo-1")
    assert [line.text for line in log.read()] == ["line 0"]
    stream.written, stream.partial = 2, ""
    assert [line.text for line in log.read()] == ["line 1"]


@pytest.mark.parametrize("status", [400, 404])
def test_a_pod_that_has_not_started_or_is_gone_has_no_lines(status: int) -> None:
    stream = Stream(LINES)
    stream.status = status
    assert PodLog(stream, "a", "p", "algo-1").read() == []


def test_other_refusals_are_reported() -> None:
    stream = Stream(LINES)
    stream.status = 403
    with pytest.raises(KubernetesError):
        PodLog(stream, "a", "p", "algo-1").read()


def test_a_pod_that_comes_later_is_read_too() -> None:
    stream = Stream(LINES)
    stream.written = 7
    pods: list[tuple[str, str]] = []
    logs = JobLogs(stream, "a", lambda: pods)
    assert logs.read() == []
    pods.append(("p", "algo-1"))
    assert [len(lines) for lines in logs.rest(None)] == [7]
