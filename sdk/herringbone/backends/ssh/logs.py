"""The log of a job on machines elsewhere, as a `LogSource`: what their visits bring, and in the end the files here."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path

from herringbone.backends.ssh.following import Following
from herringbone.logs import LogLine, parse_line

_READ_BYTES = 1 << 20


class _HostLines:
    """One host's log, in pieces as they come; `offset` counts the bytes taken."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.offset = 0
        self._rest = b""
        self._lines: list[bytes] = []

    def feed(self, chunk: bytes) -> None:
        self.offset += len(chunk)
        *whole, self._rest = (self._rest + chunk).split(b"\n")
        self._lines += whole

    def take(self) -> list[LogLine]:
        lines, self._lines = self._lines, []
        return [parse_line(line, self.host) for line in lines]


class RemoteLogs:
    """Reads what a following hears; `filed` is where a host's whole log will be, here, when the job is over."""

    def __init__(self, following: Following, filed: Callable[[str], Path], close: Callable[[], None]) -> None:
        self._following = following
        self._filed = filed
        self._close = close
        self._silent: dict[str, str] = {}
        self._hosts = {host: _HostLines(host) for host in following.views}
        for host, view in following.views.items():
            view.take_log(self._hosts[host].feed)

    def read(self) -> list[LogLine]:
        self._following.look()
        return [*self._told(), *self._take()]

    def rest(self, ended: float | None) -> Iterator[list[LogLine]]:  # noqa: ARG002 - it lies here by then
        if lines := self._take():
            yield lines
        for host, lines_of in self._hosts.items():
            try:
                with self._filed(host).open("rb") as file:
                    file.seek(lines_of.offset)
                    while chunk := file.read(_READ_BYTES):
                        lines_of.feed(chunk)
            except FileNotFoundError:
                continue  # its machine was lost, and its log with it
        while lines := self._take():
            yield lines

    def close(self) -> None:
        self._close()

    def _told(self) -> list[LogLine]:
        """Say once which machines are not heard of, and once that they are again."""
        before, self._silent = self._silent, self._following.silences()
        machines = {host: view.machine.name for host, view in self._following.views.items()}
        told = {host: f"{machines[host]} is waited for: {why}" for host, why in self._silent.items()}
        said = {host: text for host, text in told.items() if host not in before}
        said |= {host: f"{machines[host]} answers again" for host in before if host not in self._silent}
        now = datetime.now(timezone.utc)
        return [LogLine(host, None, now, text) for host, text in said.items()]

    def _take(self) -> list[LogLine]:
        # Between hosts the time decides; within one, the order of its log does.
        return list(heapq.merge(*(host.take() for host in self._hosts.values()), key=lambda line: line.time))
