"""The log from the streams of pods and from kept copies: no line lost, none doubled, over cuts and rotations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from herringbone.backends.kubernetes.logs import JobLogs, PodLog
from herringbone_contract.errors import InputError, KubernetesError


class Stream:
    """Answers as the API server does: the lines from the second of `sinceTime` on, without those of rotated files."""

    def __init__(self, lines: list[str]) -> None:
        self.lines, self.written, self.rotated, self.partial, self.status = lines, 0, 0, "", 0

    def text(self, path: str, **query: str) -> bytes:
        assert path == "api/v1/namespaces/a/pods/p/log"
        if self.status:
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


def test_a_node_that_is_away_is_named_once_and_its_lines_follow() -> None:
    log = log_of(stream := Stream(LINES))
    stream.written = 3
    assert texts(log) == TEXTS[:3]
    stream.written, stream.status = 5, 500
    away = "herringbone: the node of pod p does not answer; lines follow when it does"
    assert [line.text for line in (*log.read(), *log.read())] == [away]
    stream.status = 0
    assert texts(log) == TEXTS[3:5]


def test_a_pod_that_comes_later_is_read_too() -> None:
    stream = Stream(LINES)
    stream.written = 7
    pods: list[tuple[str, str]] = []
    logs = JobLogs(stream, "a", lambda: pods, Kept([]), lambda _: 0)
    assert logs.read() == []
    pods.append(("p", "algo-1"))
    assert [len(lines) for lines in logs.rest(None)] == [7]


def test_pods_that_are_gone_are_found_by_their_copies_which_are_listed_once() -> None:
    stream, kept = Stream(LINES), Kept(COPY)
    stream.status = 404
    logs = JobLogs(stream, "a", list, kept, lambda _: 2)
    assert [line.text for lines in logs.rest(None) for line in lines] == TEXTS
    kept.errors = [AssertionError()]
    assert logs.read() == []


def test_copies_that_cannot_be_listed_are_named_and_the_rest_is_shown() -> None:
    stream, kept = Stream(LINES), Kept(COPY)
    stream.written, kept.errors = 7, [InputError("exceeded quota")]
    logs = JobLogs(stream, "a", lambda: [("p", "algo-1")], kept, lambda _: 2)
    seen = [line.text for lines in logs.rest(None) for line in lines]
    assert seen == ["herringbone: logs of pods that are gone cannot be read: exceeded quota", *TEXTS]
