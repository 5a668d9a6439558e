"""The log of a job from the streams of its pods, and from the copies in its results where a stream lacks lines.

    kubelet's stream   `2026-11-30T17:00:00.123456789Z 17 [algo-1:0] text`; a kubelet serves its newest file alone
    kept copy          the same lines from the first one on, stamped by the pod (`herringbone_entry.numbered`)

By the numbers, a cut connection neither loses nor doubles a line, and lines of a file that was rotated away are read
from the copy, as is the log of a pod that is gone.
"""

from __future__ import annotations

import heapq
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timezone
from typing import NamedTuple, Protocol

from herringbone.backends.kubernetes.api import Api, path_of
from herringbone.backends.kubernetes.pods import CONTAINER
from herringbone.records.logs import LogLine, marked_line
from herringbone_contract.errors import HerringboneError, KubernetesError, ServiceError

_NOT_YET = 400
_GONE = 404
_LONG_AGO = datetime.fromtimestamp(0, timezone.utc)
# Kubelets look at the sizes of logs every 10 s.
_ROTATION_SECONDS = 10.0
# A copy may have a gigabyte, so it comes in batches.
_BATCH_LINES = 10_000
_NUMBER = re.compile(rb"^\d{1,18}[ +]")
# Lines of the pod's shell, from before the supervisor runs, have no number.
_LINE = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?Z) (?:(\d{1,18})([ +]))?(.*)", re.DOTALL)


class KeptLogs(Protocol):
    """The copies of the logs of pods. Raises `HerringboneError` where they cannot be read."""

    def pods(self) -> Sequence[tuple[str, str]]:
        """Return the pods that have one, each with its host."""

    def lines(self, pod: str, host: str, first: int) -> Iterator[bytes]:
        """Yield the whole lines of a copy from number `first` on, without their ends; nothing without a copy."""


class NoKeptLogs:
    """A job without results: it has no copies."""

    def pods(self) -> Sequence[tuple[str, str]]:
        return ()

    def lines(self, pod: str, host: str, first: int) -> Iterator[bytes]:  # noqa: ARG002
        return iter(())


class _Line(NamedTuple):
    """One line as a kubelet prints it; `number` is None for a line of the shell."""

    stamp: str
    number: int | None
    continues: bool
    words: bytes


class PodLog:
    """The log of one pod."""

    def __init__(
        self,
        api: Api,
        namespace: str,
        pod: str,
        host: str,
        kept: KeptLogs,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api, self._path, self._kept = api, path_of("Pod", namespace, pod, "log"), kept
        self._pod, self._host, self._clock = pod, host, clock
        # The number of the next line, and the pieces of a long line so far.
        self._next, self._parts = 1, b""
        # The stamp of the stream's last line. Of lines without a number also how many of them have it.
        self._since, self._bare, self._count = "", "", 0
        self._time = _LONG_AGO
        # Lines that the stream lacks, up to this number, None for all.
        self._missing: Iterator[bytes] | None = None
        self._until: int | None = None
        self._is_gone = False
        # When the copy was last asked for lines behind those of the stream, and what was last said about this log.
        self._asked_at = -_ROTATION_SECONDS
        self._reported = ""

    def read(self) -> list[LogLine]:
        """Return the whole lines since the last read; [] of a pod that has not started, or whose log is over."""
        while True:
            if self._missing is None:
                if self._is_gone:
                    return []
                lines = self._from_stream()
                if lines or self._missing is None:
                    return lines
            # A gap may have nothing but pieces of one long line, whose end is in the stream.
            if lines := self._from_copy():
                return lines

    def _from_stream(self) -> list[LogLine]:
        since = {"sinceTime": f"{self._since[:19]}Z"} if self._since else {}
        try:
            text = self._api.text(self._path, container=CONTAINER, timestamps="true", **since)
        except KubernetesError as error:
            if error.status == _GONE:
                self._is_gone = True
                self._miss(None)
            elif error.status is not None and error.transient:
                # The API server answers, and the pod's kubelet does not: lines of other nodes go on.
                return self._said(f"the node of pod {self._pod} does not answer; lines follow when it does")
            elif error.status != _NOT_YET:
                raise
            return []
        lines, skip = [], self._count
        is_continued = not self._since and bool(text)
        # What has no end of line yet comes again, as a whole.
        for line in map(_parsed, text.split(b"\n")[:-1]):
            if line is None:
                continue
            if line.number is None:
                if line.stamp < self._bare or (line.stamp == self._bare and skip):
                    skip -= line.stamp == self._bare
                    continue
                self._count = self._count + 1 if line.stamp == self._bare else 1
                self._bare = line.stamp
            elif line.number < self._next:
                is_continued = is_continued or line.number == self._next - 1
                continue
            elif line.number > self._next:
                self._miss(line.number)
                break
            self._since = line.stamp
            lines += self._taken(line)
        else:
            # The last line is not served any more, so the next ones may be in a file that was rotated away, too.
            if not lines and not is_continued and self._clock() - self._asked_at >= _ROTATION_SECONDS:
                self._asked_at = self._clock()
                self._miss(None)
        return lines

    def _miss(self, until: int | None) -> None:
        self._until, self._missing = until, self._kept.lines(self._pod, self._host, self._next)

    def _from_copy(self) -> list[LogLine]:
        """Return the next lines that the stream lacks; what the copy lacks, too, is named once."""
        assert self._missing is not None
        missing, self._missing = self._missing, None
        lines: list[LogLine] = []
        why = ""
        try:
            for count, line in enumerate(map(_parsed, missing)):
                if line is None or line.number != self._next:
                    why = "their copy is damaged"
                    break
                if line.number == self._until:
                    break
                lines += self._taken(line)
                if count + 1 == _BATCH_LINES:
                    self._missing = missing
                    return lines
        except HerringboneError as error:
            if is_transient(error):
                # The next read asks the stream again, and comes back here.
                self._is_gone = False
                if not lines:
                    raise
                return lines
            why = str(error)
        if not why and self._until is not None and self._next < self._until:
            why = "their copy has ended"
        return [*lines, *self._lost(why)] if why else lines

    def _lost(self, why: str) -> list[LogLine]:
        numbers = f"from {self._next} on" if self._until is None else f"{self._next} to {self._until - 1}"
        self._next, self._parts = self._until or self._next, b""
        return self._said(f"lines {numbers} of pod {self._pod} are missing: {why}")

    def _said(self, text: str) -> list[LogLine]:
        """Return a line about the log, unless it is what was said last."""
        before, self._reported = self._reported, text
        return [] if text == before else [notice(self._host, self._time, text)]

    def _taken(self, line: _Line) -> list[LogLine]:
        """Count a line, and return it once it is whole."""
        self._time, words = _moment(line.stamp), line.words
        if line.number is not None:
            self._next = line.number + 1
            words, self._parts = self._parts + words, b""
            if line.continues:
                self._parts = words
                return []
        return [marked_line(words, self._host, self._time)]


class JobLogs:
    """The `LogSource` of a job; `pods` returns the pods of its hosts that exist by now, each with its host.

    `all_pods` returns the number of pods that the job has had so far in all its attempts, from the names of those that
    are known: the copies of those that are gone are looked for.
    """

    def __init__(
        self,
        api: Api,
        namespace: str,
        pods: Callable[[], Sequence[tuple[str, str]]],
        kept: KeptLogs | None = None,
        all_pods: Callable[[Iterable[str]], int] = lambda _: 0,
    ) -> None:
        self._api, self._namespace, self._pods = api, namespace, pods
        self._kept: KeptLogs = kept or NoKeptLogs()
        self._all_pods = all_pods
        # The number of pods at the last look for copies.
        self._looked_at = 0
        self._logs: dict[str, PodLog] = {}

    def read(self) -> list[LogLine]:
        self._add(self._pods())
        notices: list[LogLine] = []
        if (expected := self._all_pods(self._logs)) > max(len(self._logs), self._looked_at):
            try:
                self._add(self._kept.pods())
            except HerringboneError as error:
                if is_transient(error):
                    raise
                notices.append(notice("job", _LONG_AGO, f"logs of pods that are gone cannot be read: {error}"))
            self._looked_at = expected
        return list(heapq.merge(notices, *(log.read() for log in self._logs.values()), key=lambda line: line.time))

    def rest(self, ended: float | None) -> Iterator[list[LogLine]]:  # noqa: ARG002 - a pod that is over has all
        while lines := self.read():
            yield lines

    def close(self) -> None:
        pass

    def _add(self, pods: Sequence[tuple[str, str]]) -> None:
        for pod, host in pods:
            if pod not in self._logs:
                self._logs[pod] = PodLog(self._api, self._namespace, pod, host, self._kept)


def is_transient(error: HerringboneError) -> bool:
    """Report whether the same question may have an answer later."""
    return isinstance(error, ServiceError) and error.transient


def notice(host: str, moment: datetime, text: str) -> LogLine:
    """Return a line about the log itself."""
    return LogLine(host, None, moment, f"herringbone: {text}")


def without_number(line: bytes) -> bytes:
    """Return a line that a pod has printed, without the number that `herringbone_entry.numbered` gives it.

    >>> without_number(b"17 [algo-1:0] a"), without_number(b"[algo-1:0] 17 a")
    (b'[algo-1:0] a', b'[algo-1:0] 17 a')
    """
    return _NUMBER.sub(b"", line, count=1)


def _parsed(line: bytes) -> _Line | None:
    """Return a line of a kubelet or of a copy; None for an error of the kubelet itself, which has no stamp.

    >>> _parsed(b"2026-11-30T17:00:00.12Z 17+[algo-1:0] a")
    _Line(stamp='2026-11-30T17:00:00.120000000', number=17, continues=True, words=b'[algo-1:0] a')
    """
    match = _LINE.fullmatch(line)
    if match is None:
        return None
    stamp, number, mark, words = match.groups()
    return _Line(_sortable(stamp), None if number is None else int(number), mark == b"+", words)


def _sortable(stamp: bytes) -> str:
    """Return a stamp with all nine digits of its nanoseconds; the kubelet leaves zeros at the end out.

    >>> _sortable(b"2026-11-30T17:00:00.12Z")
    '2026-11-30T17:00:00.120000000'
    """
    seconds, _, fraction = stamp.decode().rstrip("Z").partition(".")
    return f"{seconds}.{fraction:0<9}"


def _moment(stamp: str) -> datetime:
    # Python has microseconds.
    return datetime.fromisoformat(stamp[:26]).replace(tzinfo=timezone.utc)
