"""The log of a job from the streams of its pods, with the kubelet's time stamps.

Each read asks for the lines since the second of the last one, and drops those that it has: stamps have nanoseconds, and
the lines of a pod are in order. So a cut connection neither loses nor doubles a line.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone

from herringbone.backends.kubernetes.api import Api, path_of
from herringbone.backends.kubernetes.pods import CONTAINER
from herringbone.records.logs import LogLine, marked_line
from herringbone_contract.errors import KubernetesError

_NOT_YET = 400
_GONE = 404


class PodLog:
    """The log of one pod."""

    def __init__(self, api: Api, namespace: str, pod: str, host: str) -> None:
        self._api, self._path, self._host = api, path_of("Pod", namespace, pod, "log"), host
        # The stamp of the last line, and how many lines have it.
        self._last, self._count = "", 0

    def read(self) -> list[LogLine]:
        """Return the whole lines since the last read; [] of a pod that has not started, or is gone."""
        since = {"sinceTime": f"{self._last[:19]}Z"} if self._last else {}
        try:
            text = self._api.text(self._path, container=CONTAINER, timestamps="true", **since)
        except KubernetesError as error:
            if error.status in (_NOT_YET, _GONE):
                return []
            raise
        lines, skip = [], self._count
        # What has no end of line yet comes again, as a whole.
        for line in text.split(b"\n")[:-1]:
            written, _, words = line.partition(b" ")
            stamp = _sortable(written)
            if stamp < self._last:
                continue
            if stamp == self._last and skip:
                skip -= 1
                continue
            self._count = self._count + 1 if stamp == self._last else 1
            self._last = stamp
            lines.append(marked_line(words, self._host, _moment(stamp)))
        return lines


class JobLogs:
    """The `LogSource` of a job; `pods` returns the pods of its hosts that exist by now, each with its host."""

    def __init__(self, api: Api, namespace: str, pods: Callable[[], Sequence[tuple[str, str]]]) -> None:
        self._api, self._namespace, self._pods = api, namespace, pods
        self._logs: dict[str, PodLog] = {}

    def read(self) -> list[LogLine]:
        for pod, host in self._pods():
            if pod not in self._logs:
                self._logs[pod] = PodLog(self._api, self._namespace, pod, host)
        return list(heapq.merge(*(log.read() for log in self._logs.values()), key=lambda line: line.time))

    def rest(self, ended: float | None) -> Iterator[list[LogLine]]:  # noqa: ARG002 - a pod that is over has all
        while lines := self.read():
            yield lines

    def close(self) -> None:
        pass


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
