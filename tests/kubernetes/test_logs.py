"""The log from the streams of pods and from kept copies: no line lost, none doubled, over cuts and rotations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from threading import Event
from typing import Any

import pytest

from herringbone.backends.kubernetes.logs import JobLogs, PodLog
from herringbone_contract.errors import InputError, KubernetesError


class Stream:
    """Answers as the API server does: the lines from the second of `sinceTime` on, without those of rotated files."""

    def __init__(self, lines: list[str]) -> None:
        self.lines, self.written, self.rotated, self.partial = lines, 0, 0, ""
        # That of a refusal; None of a server that does not answer.
        self.status: int | None = 0

    def text(self, path: str, **query: str) -> bytes:
        assert path == "api/v1/namespaces/a/pods/p/log"
        if self.status != 0:
            raise KubernetesError("no", status=self.status)
        since = query.get("sinceTime", "").rstrip("Z")
        lines = [line for line in self.lines[self.rotated : self.written] if line >= since]
        return ("".join(f"{line}\n" for line in lines) + self.partial).encode()

    def call(self, *_: Any, **__: Any) -> Any:
        raise AssertionError

    def run(self, *_: Any, **__: Any) -> str:
        raise AssertionError

    def stream(self, *_: Any, **__: Any) -> Any:
        raise AssertionError


class Kept:
    """Copies of the same lines; `end` is how many it has."""

    def __init__(self, lines: list[str]) -> None:
        self.copy, self.end, self.asked = lines, len(lines), []
        self.errors: list[Exception] = []

    def pods(self) -> Sequence[tuple[str, str]]:
        if self.errors:
            raise self.errors.pop()
        return [("p", "algo-1")]

    def lines(self, pod: str, host: str, first: int) -> Iterator[bytes]:
        assert (pod, host) == ("p", "algo-1")
        self.asked.append(first)
        for line in self.copy[first - 1 : self.end]:
            if self.errors:
                raise self.errors.pop()
            yield line.encode()


# The kubelet leaves zeros at the end of a stamp out.
STAMPS = ("00:00:01.1Z", "00:00:01.12Z", "00:00:01.12Z", "00:00:01.123Z", "00:00:02Z", "00:00:02.5Z", "00:00:02.5Z")
LINES = [f"2026-11-30T{stamp} {n} [algo-1:0] line {n}" for n, stamp in enumerate(STAMPS, 1)]
# The pod stamps lines a moment after the kubelet.
COPY = [f"2026-11-30T00:00:04.000000Z {n} [algo-1:0] line {n}" for n in range(1, 8)]
TEXTS = [f"line {n}" for n in range(1, 8)]


def log_of(stream: Stream, kept: Kept | None = None, clock: Callable[[], float] = lambda: 0.0) -> PodLog:
    return PodLog(stream, "a", "p", "algo-1", kept or Kept([]), clock=clock)


def texts(log: PodLog) -> list[str]:
    """Return the lines of all reads up to an empty one."""
    return [line.text for lines in iter(log.read, []) for line in lines]


@pytest.mark.parametrize("cuts", [(7,), (1, 7), (2, 3, 7), tuple(range(1, 8)), (4, 4, 5, 6, 7)])
def test_every_line_comes_once_and_in_order(cuts: tuple[int, ...]) -> None:
    stream = Stream(LINES)
    log, seen = log_of(stream), []
    for stream.written in cuts:
        seen += texts(log)
    assert seen == TEXTS
    assert log.read() == []


@pytest.mark.parametrize("rotations", [{7: 6}, {2: 0, 7: 4}, {1: 0, 4: 3, 7: 6}, {3: 2, 7: 6}, {7: 7}])
def test_lines_that_rotation_has_removed_come_from_the_copy(rotations: dict[int, int]) -> None:
    stream, kept = Stream(LINES), Kept(COPY)
    log, seen = log_of(stream, kept), []
    for stream.written, stream.rotated in rotations.items():
        seen += texts(log)
    stream.status = 404
    assert seen + texts(log) == TEXTS
    assert log.read() == []


def test_lines_behind_the_last_one_are_found_where_nothing_new_is_printed() -> None:
    stream, kept, now = Stream(LINES), Kept(COPY), [0.0]
    log = log_of(stream, kept, lambda: now[0])
    stream.written = 3
    # An unfinished look at the copy would cost a program in the pod each time.
    assert (texts(log), kept.asked) == (TEXTS[:3], [])
    stream.written = stream.rotated = kept.end = 5
    assert texts(log) == TEXTS[3:5]
    assert (texts(log), kept.asked) == ([], [4])
    now[0], kept.end = 10.0, 7
    assert (texts(log), kept.asked) == (TEXTS[5:], [4, 6])


def test_a_log_that_is_empty_since_its_rotation_is_read_from_the_copy() -> None:
    stream = Stream(LINES)
    stream.written = stream.rotated = 7
    assert texts(log_of(stream, Kept(COPY))) == TEXTS


def test_a_copy_that_nobody_may_read_is_named_once() -> None:
    stream, kept, now = Stream(LINES), Kept(COPY), [0.0]
    log = log_of(stream, kept, lambda: now[0])
    seen = []
    for now[0] in (0.0, 20.0, 40.0):
        kept.errors = [KubernetesError("you may not exec", status=403)]
        seen += texts(log)
    assert seen == ["herringbone: lines from 1 on of pod p are missing: you may not exec"]


def test_a_pod_that_is_gone_is_read_from_where_its_stream_ended() -> None:
    stream, kept = Stream(LINES), Kept(COPY)
    stream.written = 3
    log = log_of(stream, kept)
    assert texts(log) == TEXTS[:3]
    stream.status = 404
    assert texts(log) == TEXTS[3:]
    assert kept.asked == [4]


def test_a_copy_that_has_ended_is_named_once_and_the_stream_goes_on() -> None:
    stream, kept = Stream(LINES), Kept(COPY)
    stream.written, stream.rotated, kept.end = 7, 4, 2
    log = log_of(stream, kept)
    missing = "herringbone: lines 3 to 4 of pod p are missing: their copy has ended"
    assert texts(log) == [*TEXTS[:2], missing, *TEXTS[4:]]
    assert log.read() == []


def test_a_copy_that_ends_where_the_stream_begins_is_whole() -> None:
    stream, kept = Stream(LINES), Kept(COPY)
    stream.written, stream.rotated, kept.end = 7, 4, 4
    assert texts(log_of(stream, kept)) == TEXTS


@pytest.mark.parametrize("damage", ["no line", "2026-11-30T00:00:04Z 17 [algo-1:0] of another number"])
def test_a_damaged_copy_is_named(damage: str) -> None:
    stream, kept = Stream(LINES), Kept([*COPY[:2], damage, *COPY[3:]])
    stream.status = 404
    missing = "herringbone: lines from 3 on of pod p are missing: their copy is damaged"
    assert texts(log_of(stream, kept)) == [*TEXTS[:2], missing]


def test_a_copy_that_nobody_may_read_is_named_and_one_that_is_away_is_asked_again() -> None:
    stream, kept = Stream(LINES), Kept(COPY)
    stream.written, stream.rotated = 7, 6
    kept.errors = [KubernetesError("you may not exec", status=403)]
    missing = "herringbone: lines 1 to 6 of pod p are missing: you may not exec"
    assert texts(log_of(stream, kept)) == [missing, "line 7"]
    kept.errors = [KubernetesError("cut")]
    log = log_of(stream, kept)
    with pytest.raises(KubernetesError, match="cut"):
        log.read()
    assert texts(log) == TEXTS


def test_pieces_of_a_long_line_are_one_line_also_over_a_rotation() -> None:
    words = ("1+[algo-1:0] a", "2+b", "3 c")
    stamped = [f"2026-11-30T00:00:0{word[0]}Z {word}" for word in words]
    for rotated in (0, 1, 2):
        stream = Stream(stamped)
        log = log_of(stream, Kept(stamped))
        stream.written = 1
        assert texts(log) == []
        stream.written, stream.rotated = 3, rotated
        assert texts(log) == ["abc"]


def test_lines_of_the_shell_have_no_number() -> None:
    bare = ["2026-11-30T00:00:00.5Z cp: no such file", "2026-11-30T00:00:00.5Z cp: no such file"]
    stream = Stream([*bare, *LINES])
    log, seen = log_of(stream), []
    for stream.written in (1, 2, 4, 9):
        seen += texts(log)
    assert seen == ["cp: no such file"] * 2 + TEXTS


def test_what_the_kubelet_says_itself_is_no_line() -> None:
    stream = Stream(["failed to try resolving symlinks in path"])
    stream.written = 1
    assert texts(log_of(stream)) == []


def test_a_line_without_its_end_comes_when_it_is_whole() -> None:
    stream = Stream(LINES)
    stream.written, stream.partial = 1, "2026-11-30T00:00:01.12Z 2 [algo-1:0] li"
    log = log_of(stream)
    assert texts(log) == TEXTS[:1]
    stream.written, stream.partial = 2, ""
    assert texts(log) == TEXTS[1:2]


@pytest.mark.parametrize("status", [400, 404])
def test_a_pod_that_has_not_started_or_left_nothing_has_no_lines(status: int) -> None:
    stream = Stream(LINES)
    stream.status = status
    assert log_of(stream).read() == []


def test_other_refusals_are_reported() -> None:
    stream = Stream(LINES)
    stream.status = 403
    with pytest.raises(KubernetesError):
        log_of(stream).read()


def test_a_pod_that_comes_later_is_read_too() -> None:
    stream = Stream(LINES)
    stream.written = 7
    pods: list[tuple[str, str]] = []
    logs = JobLogs(stream, "a", lambda: (pods, 0), Kept([]))
    assert logs.read() == []
    pods.append(("p", "algo-1"))
    assert [len(lines) for lines in logs.rest(None)] == [7]
    assert [lines for lines in logs.rest(None) if lines] == []


def test_pods_that_are_gone_are_found_by_their_copies_which_are_listed_once() -> None:
    stream, kept = Stream(LINES), Kept(COPY)
    stream.status = 404
    logs = JobLogs(stream, "a", lambda: ([], 2), kept)
    assert [line.text for lines in logs.rest(None) for line in lines] == TEXTS
    kept.errors = [AssertionError()]
    assert logs.read() == []


def test_copies_that_cannot_be_listed_are_named_and_the_rest_is_shown() -> None:
    stream, kept = Stream(LINES), Kept(COPY)
    stream.written, kept.errors = 7, [InputError("exceeded quota")]
    logs = JobLogs(stream, "a", lambda: ([("p", "algo-1")], 2), kept)
    seen = [line.text for lines in logs.rest(None) for line in lines]
    assert seen == ["herringbone: logs of pods that are gone cannot be read: exceeded quota", *TEXTS]


class Nodes:
    """The streams of several pods; a kubelet whose `gate` is closed answers when it opens."""

    def __init__(self, **streams: Stream) -> None:
        self.streams, self.gate, self.begun = streams, Event(), Event()
        self.gate.set()

    def text(self, path: str, **query: str) -> bytes:
        pod = path.split("/")[-2]
        if pod == "p":
            self.begun.set()
            assert self.gate.wait(30)
        return self.streams[pod].text("api/v1/namespaces/a/pods/p/log", **query)

    call = run = stream = Stream.call


def both(nodes: Nodes, patience: float) -> JobLogs:
    return JobLogs(nodes, "a", lambda: ([("p", "algo-1"), ("q", "algo-2")], 0), patience=patience)


def shown(logs: JobLogs) -> list[str]:
    return [line.text.removeprefix("herringbone: the log of pod p ") for line in logs.read()]


def test_one_kubelet_that_is_away_keeps_no_lines_of_the_others() -> None:
    away, other = Stream(LINES), Stream(LINES)
    logs = both(Nodes(p=away, q=other), 30.0)
    away.written = other.written = 1
    assert shown(logs) == ["line 1", "line 1"]
    away.status, away.written, other.written = 500, 2, 2
    named = "cannot be read now, and is asked again: no"
    assert shown(logs) == [named, "line 2"]
    other.written = 3
    assert [line for _ in range(3) for line in shown(logs)] == ["line 3"]
    away.status = 0
    # The read that failed was not awaited.
    again = [line for lines in logs.rest(None) for line in lines]
    assert [line.text for line in again] == ["herringbone: the log of pod p goes on", "line 2"]


def test_a_node_that_does_not_answer_is_awaited_once() -> None:
    away, other = Stream(LINES), Stream(LINES)
    nodes = Nodes(p=away, q=other)
    logs = both(nodes, 30.0)
    away.written = other.written = 1
    assert len(shown(logs)) == 2
    nodes.gate.clear()
    logs._patience, other.written = 0.2, 2
    named = "cannot be read now, and is asked again: its node does not answer"
    assert shown(logs) == [named, "line 2"]
    logs._patience, away.written, other.written = 30.0, 2, 3
    assert shown(logs) == ["line 3"]
    nodes.gate.set()
    assert [line.text for lines in logs.rest(None) for line in lines][-1] == "line 2"


def test_lines_come_before_the_refusal_of_another_pod() -> None:
    refused, other = Stream(LINES), Stream(LINES)
    logs = both(Nodes(p=refused, q=other), 30.0)
    refused.status, other.written = 403, 7
    assert len(shown(logs)) == 7
    with pytest.raises(KubernetesError):
        logs.read()


def test_an_api_server_that_is_away_is_no_absent_kubelet() -> None:
    stream = Stream(LINES)
    logs = both(Nodes(p=stream, q=stream), 30.0)
    stream.status = None
    with pytest.raises(KubernetesError):
        logs.read()


def test_a_pod_that_only_starts_has_no_copy_to_look_at() -> None:
    stream, kept = Stream(LINES), Kept(COPY)
    kept.errors = [KubernetesError("pod p: /bin/sh cannot run there: container not found", status=500)]
    assert log_of(stream, kept).read() == []
    kept.errors = [KubernetesError("cut", status=500)]
    with pytest.raises(KubernetesError):
        log_of(stream, kept).read(is_last=True)
