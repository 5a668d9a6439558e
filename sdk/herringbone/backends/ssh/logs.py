"""The log of a job on machines elsewhere, as a `LogSource`: what their visits bring, and in the end the files here."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path

from herringbone.backends.ssh.follow import Following
from herringbone.jobs.logs import LogLine, parse_line

_READ_BYTES = 1 << 20


class _HostLines:
    """One host's log, in pieces as they come.

    `offset` counts the bytes taken of the attempt whose log `begins` there in the file here.
    """

    def __init__(self, host: str, begins: int) -> None:
        self.host = host
        self.begins = begins
        self.offset = 0
        self._rest = b""
        self._lines: list[bytes] = []

    def feed(self, chunk: bytes) -> None:
        self.offset += len(chunk)
        *whole, self._rest = (self._rest + chunk).split(b"\n")
        self._lines += whole

    def begin(self, at: int) -> None:
        """Take what comes from now on as another attempt's; half a line of the one before is lost with its machine."""
        self.begins, self.offset, self._rest = at, 0, b""

    def take(self) -> list[LogLine]:
        lines, self._lines = self._lines, []
        return [parse_line(line, self.host) for line in lines]


class RemoteLogs:
    """Reads what a following hears; `filed` is where a host's whole log will be, here, when the job is over.

    `current` gives the following of the attempt that runs, and where in the files here its logs begin.
    """

    def __init__(
        self,
        current: Callable[[], tuple[Following, Mapping[str, int]]],
        filed: Callable[[str], Path],
        close: Callable[[], None],
    ) -> None:
        self._current = current
        self._filed = filed
        self._close = close
        self._silent: dict[str, str] = {}
        self._hosts: dict[str, _HostLines] = {}
        self._following: Following | None = None
        self._catch_up()

    def read(self) -> list[LogLine]:
        self._catch_up()
        assert self._following is not None
        self._following.look()
        return [*self._told(), *self._take()]

    def rest(self, ended: float | None) -> Iterator[list[LogLine]]:  # noqa: ARG002 - it lies here by then
        self._catch_up()
        if lines := self._take():
            yield lines
        for lines_of in self._hosts.values():
            self._read_filed(lines_of)
        while lines := self._take():
            yield lines

    def close(self) -> None:
        self._close()

    def _told(self) -> list[LogLine]:
        """Say once which machines are not heard of, and once that they are again."""
        assert self._following is not None
        before, self._silent = self._silent, self._following.silences()
        machines = {host: view.machine.name for host, view in self._following.views.items()}
        told = {host: f"{machines[host]} is waited for: {why}" for host, why in self._silent.items()}
        said = {host: text for host, text in told.items() if host not in before}
        said |= {host: f"{machines[host]} answers again" for host in before if host not in self._silent}
        now = datetime.now(timezone.utc)
        return [LogLine(host, None, now, text) for host, text in said.items()]

    def _catch_up(self) -> None:
        """Go on with the attempt that runs now; what the one before left is filed by then, up to where this begins."""
        following, begins = self._current()
        if following is self._following:
            return
        self._following, self._silent = following, {}
        for host in dict.fromkeys([*self._hosts, *begins, *following.views]):
            lines_of = self._hosts.setdefault(host, _HostLines(host, 0))
            self._read_filed(lines_of, begins.get(host, 0))
            lines_of.begin(begins.get(host, 0))
        for host, view in following.views.items():
            view.take_log(self._hosts[host].feed)

    def _read_filed(self, lines_of: _HostLines, end: int | None = None) -> None:
        try:
            with self._filed(lines_of.host).open("rb") as file:
                place = file.seek(lines_of.begins + lines_of.offset)
                while chunk := file.read(_READ_BYTES if end is None else min(_READ_BYTES, max(0, end - place))):
                    place += len(chunk)
                    lines_of.feed(chunk)
        except FileNotFoundError:
            pass  # its machine was lost, and its log with it

    def _take(self) -> list[LogLine]:
        # Between hosts the time decides; within one, the order of its log does.
        return list(heapq.merge(*(host.take() for host in self._hosts.values()), key=lambda line: line.time))
