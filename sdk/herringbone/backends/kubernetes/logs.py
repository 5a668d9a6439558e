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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from datetime import datetime, timezone
from threading import Thread
from typing import NamedTuple, Protocol

from herringbone.backends.kubernetes.api import Api, path_of
from herringbone.backends.kubernetes.pods import CONTAINER
from herringbone.records.logs import LogLine, marked_line
from herringbone_contract.errors import HerringboneError, KubernetesError, ServiceError

_NOT_YET = 400
_GONE = 404
# A read that takes longer goes on in the background.
_PATIENCE_SECONDS = 5.0
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
        # When the copy was last asked for lines behind those of the stream, and what was last reported as missing.
        self._asked_at = -_ROTATION_SECONDS
        self._reported = ""

    def read(self, *, is_last: bool = False) -> list[LogLine]:
        """Return the whole lines since the last read; [] of a pod that has not started, or whose log is over.

        Until the last read, a copy is asked again later that cannot be read, and of which no line is known to lack.
        """
        while True:
            if self._missing is None:
                if self._is_gone:
                    return []
                lines = self._from_stream()
                if lines or self._missing is None:
                    return lines
            # A gap may have nothing but pieces of one long line, whose end is in the stream.
            if lines := self._from_copy(is_last=is_last):
                return lines

    def notice(self, text: str) -> LogLine:
        """Return a line about this log."""
        return notice(self._host, self._time, f"the log of pod {self._pod} {text}")

    def _from_stream(self) -> list[LogLine]:
        since = {"sinceTime": f"{self._since[:19]}Z"} if self._since else {}
        try:
            text = self._api.text(self._path, container=CONTAINER, timestamps="true", **since)
        except KubernetesError as error:
            if error.status == _GONE:
                self._is_gone = True
                self._miss(None)
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

    def _from_copy(self, *, is_last: bool) -> list[LogLine]:
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
                # The next read asks the stream again, and comes back here. A pod that only starts, or just ends, runs
                # no program that looks at the copy.
                is_needed = is_last or self._is_gone or self._until is not None
                self._is_gone = False
                if is_needed and not lines:
                    raise
                return lines
            why = str(error)
        if not why and self._until is not None and self._next < self._until:
            why = "their copy has ended"
        return [*lines, *self._lost(why)] if why else lines

    def _lost(self, why: str) -> list[LogLine]:
        numbers = f"from {self._next} on" if self._until is None else f"{self._next} to {self._until - 1}"
        text = f"lines {numbers} of pod {self._pod} are missing: {why}"
        self._next, self._parts = self._until or self._next, b""
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


class _Reading:
    """The log of one pod, each read in a thread of its own: a kubelet that is away must not delay the others."""

    def __init__(self, log: PodLog) -> None:
        self._log, self._lines = log, Future[list[LogLine]]()
        self._is_asked = False
        # Its lines are awaited no more, and a line has said so.
        self.is_absent = False

    def ask(self, *, is_last: bool) -> Future[list[LogLine]]:
        """Begin a read, unless one has not come back yet; see `PodLog.read`."""
        if not self._is_asked:
            self._is_asked, lines = True, Future[list[LogLine]]()
            self._lines = lines

            def read() -> None:
                try:
                    lines.set_result(self._log.read(is_last=is_last))
                except Exception as error:  # noqa: BLE001 - `take` raises it
                    lines.set_exception(error)

            # A daemon: the program may end while a connection to a node that is away hangs.
            Thread(target=read, daemon=True).start()
        return self._lines

    def take(self) -> list[LogLine]:
        """Return the lines that have come, or that there are none for now, once. Raises the errors of the whole job."""
        if not self._lines.done():
            return self._absent("its node does not answer")
        self._is_asked = False
        try:
            lines = self._lines.result()
        except KubernetesError as error:
            # Without a status it is the API server that does not answer, unless it still waited for the kubelet.
            if not error.transient or (error.status is None and not self.is_absent):
                raise
            return self._absent(str(error))
        was_absent, self.is_absent = self.is_absent, False
        return [self._log.notice("goes on"), *lines] if was_absent else lines

    def _absent(self, why: str) -> list[LogLine]:
        was_absent, self.is_absent = self.is_absent, True
        return [] if was_absent else [self._log.notice(f"cannot be read now, and is asked again: {why}")]


class JobLogs:
    """The `LogSource` of a job.

    `look` returns the pods that exist by now, each with its host, and the number of those that the job has had so far,
    of all its attempts: the copies of those that are gone are looked for.
    """

    def __init__(
        self,
        api: Api,
        namespace: str,
        look: Callable[[], tuple[Sequence[tuple[str, str]], int]],
        kept: KeptLogs | None = None,
        *,
        patience: float = _PATIENCE_SECONDS,
    ) -> None:
        self._api, self._namespace, self._look = api, namespace, look
        self._kept: KeptLogs = kept or NoKeptLogs()
        self._patience = patience
        # The number of pods at the last look for copies.
        self._looked_at = 0
        self._logs: dict[str, _Reading] = {}

    def read(self) -> list[LogLine]:
        return self._read(is_last=False)

    def rest(self, ended: float | None) -> Iterator[list[LogLine]]:  # noqa: ARG002 - a pod that is over has all
        # A read that has not come back yet began before the end.
        yield self._read(is_last=True)
        while lines := self._read(is_last=True):
            yield lines

    def close(self) -> None:
        pass

    def _read(self, *, is_last: bool) -> list[LogLine]:
        pods, expected = self._look()
        self._add(pods)
        batches: list[list[LogLine]] = []
        if expected > max(len(self._logs), self._looked_at):
            try:
                self._add(self._kept.pods())
            except HerringboneError as error:
                if is_transient(error):
                    raise
                batches.append([notice("job", _LONG_AGO, f"logs of pods that are gone cannot be read: {error}")])
            self._looked_at = expected
        asked = [(log, log.ask(is_last=is_last)) for log in self._logs.values()]
        wait([lines for log, lines in asked if is_last or not log.is_absent], timeout=self._patience)
        refusals: list[HerringboneError] = []
        for log, _ in asked:
            try:
                batches.append(log.take())
            except HerringboneError as error:
                refusals.append(error)
        lines = list(heapq.merge(*batches, key=lambda line: line.time))
        # Lines that were read come first; the next read meets the refusal again.
        if refusals and not lines:
            raise refusals[0]
        return lines

    def _add(self, pods: Sequence[tuple[str, str]]) -> None:
        for pod, host in pods:
            if pod not in self._logs:
                self._logs[pod] = _Reading(PodLog(self._api, self._namespace, pod, host, self._kept))


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
