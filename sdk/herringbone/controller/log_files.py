"""Writes a host's output into its log file, each line behind the time of its arrival, and its events into another."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time

from herringbone_contract.constants import EVENT_MARK, LIVE_MARK, line_prefix, live_path
from herringbone_contract.files import write_whole

_LIVE = b"] " + LIVE_MARK
# A longer line is broken here: output without newlines must not fill the memory.
MAX_LINE_BYTES = 16 << 20
# Events of one host: a job with eight samples and metrics a second writes as much in some weeks.
MAX_EVENTS_FILE_BYTES = 1 << 30
# The controller and the client write these; a line of a host that says so is none of its events.
_EVENTS_OF_THE_JOB = ("state", "restart", "bill")
_LEAST_HEARTBEAT, _MOST_HEARTBEAT = 0.01, 86_400.0
_MAX_NAMES, _NAME_CHARS = 8, 200


def stamp(now: float) -> bytes:
    """Return the prefix of a line that arrived at `now`, in seconds since 1970.

    >>> stamp(0.25)
    b'1970-01-01T00:00:00.250000Z '
    """
    seconds, micros = divmod(int(now * 1_000_000), 1_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{micros:06d}Z ".encode()


def complain(text: object) -> None:
    """Write a line into the controller's own log, unless its disk is full."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


class AppendedFile:
    """Appends whole lines to a file that several processes may write, one after the other.

    On a full disk lines are lost, and the job continues: `lost` counts the bytes. The line that was cut ends there, and
    the next one begins on a line of its own.
    """

    def __init__(self, path: str) -> None:
        # O_APPEND: the controllers of several attempts write the same file one after the other.
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        # The disk may have been full, or the machine have crashed, in the middle of an earlier attempt's last line.
        size = self.size
        self._cut = size > 0 and os.pread(self._file, 1, size - 1) != b"\n"
        self.lost, self.lost_why = 0, ""

    @property
    def size(self) -> int:
        """The size of the file in bytes, including what earlier attempts wrote."""
        return os.fstat(self._file).st_size

    def write(self, lines: bytes) -> None:
        begin = b"\n" if self._cut else b""
        view = memoryview(begin + lines)
        while view:
            try:
                written = os.write(self._file, view)
            # A full disk, for example. The job must not fail for its log.
            except OSError as error:
                self.lost, self.lost_why = self.lost + len(view), str(error.strerror)
                return
            self._cut = view[written - 1] != ord("\n")
            view = view[written:]

    def close(self) -> None:
        os.close(self._file)


class EventsFile:
    """The events of one host, next to its log; the file exists from the first event on.

    >>> EventsFile("algo-1.events", "algo-1").take(b'{"kind":"sample","t":1.0}')          # doctest: +SKIP
    True
    """

    def __init__(self, path: str, host: str, *, most_bytes: int = MAX_EVENTS_FILE_BYTES) -> None:
        self._path, self._host, self._most_bytes = path, host, most_bytes
        self._file: AppendedFile | None = None
        self._size = 0
        # The seconds between two `alive` events of the host, 0.0 before the first one.
        self.heartbeat = 0.0
        # The processes of the host that somebody has stopped, by its last `alive` event.
        self.stopped: tuple[str, ...] = ()
        # The record of the job's failure, if the host could not write the file; "" before.
        self.failure = ""

    def take(self, line: bytes) -> bool:
        """Write the event of a line, without its mark, as one of this host; return False if it is no such event."""
        # Controllers start without this module, and load it with all that they need later.
        from herringbone_contract.events.format import encode, parse

        event = parse(line)
        if event is None or event["kind"] in _EVENTS_OF_THE_JOB:
            return False
        if event["kind"] == "failure":
            self.failure = str(event.get("record"))
            return True
        if event["kind"] == "alive":
            # For this controller alone; a file with all of them would grow for nothing.
            every = event.get("every")
            # Any program of an image may write such a line.
            if not isinstance(every, (int, float)) or not _LEAST_HEARTBEAT <= every <= _MOST_HEARTBEAT:
                return False
            self.heartbeat = float(every)
            self.stopped = _names(event.get("stopped"))
            return True
        try:
            # The line names no other host than the one whose output it is.
            encoded = encode({**event, "host": self._host})
        except (ValueError, RecursionError):
            return False
        # A full disk loses events, and never the job.
        with contextlib.suppress(OSError):
            if self._file is None:
                self._file = AppendedFile(self._path)
                self._size = self._file.size
            if self._size + len(encoded) <= self._most_bytes:
                self._file.write(encoded)
                self._size += len(encoded)
        return True

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class LogFile:
    """Writes complete lines; Python works once per chunk, not per line.

    >>> log = LogFile("algo-1.log")          # doctest: +SKIP
    >>> log.feed(b"[algo-1:0] loss 0.5\\n", now=time.time())    # doctest: +SKIP

    The state of a progress bar that is not over is no line of the log. While the bar runs, `algo-1.live` has the newest
    state of each rank, in the format of the log. A bar whose host died leaves its last state in the log.

    An event of the host's supervisor is no line of the log either: `algo-1.events` has it. See `events.format`.
    """

    def __init__(self, path: str) -> None:
        self._file = AppendedFile(path)
        # Pieces of the last, incomplete line: joining them once is linear, appending to one string is not.
        self._rest: list[bytes] = []
        self._rest_size = 0
        self._live_path = live_path(path)
        host = os.path.basename(path).removesuffix(".log")  # noqa: PTH119
        self._rank_prefix = line_prefix(host).rstrip(b"] ") + b":"
        # Whatever ranks print begins with their own prefix, so this is a line of the supervisor.
        self._event_start = line_prefix(host) + EVENT_MARK
        self._events = EventsFile(f"{path.removesuffix('.log')}.events", host)
        # The prefix of a rank's lines -> its line in the live file.
        self._live: dict[bytes, bytes] = {}
        # The states of progress bars, as lines of a log, since somebody last took them.
        self.states: list[bytes] = []
        # The controller of an earlier attempt may have been killed.
        self._write_live()

    @property
    def size(self) -> int:
        """The size of the file in bytes, including what earlier attempts wrote."""
        return self._file.size

    @property
    def lost(self) -> int:
        """The bytes of the log that a full disk did not take."""
        return self._file.lost

    @property
    def heartbeat(self) -> float:
        """The seconds between two signs of life that the host has promised, 0.0 for none."""
        return self._events.heartbeat

    @property
    def failure(self) -> str:
        """The failure record that the host could not write into its file; "" if there is none."""
        return self._events.failure

    @property
    def lost_why(self) -> str:
        """The reason why bytes of the log were lost, in the system's words."""
        return self._file.lost_why

    @property
    def stopped(self) -> tuple[str, ...]:
        """The processes of the host that somebody has stopped, in words."""
        return self._events.stopped

    def begin_attempt(self) -> int:
        """Return the byte at which another attempt begins, whose host has not sent a sign of life yet."""
        self._events.heartbeat, self._events.stopped, self._events.failure = 0.0, (), ""
        return self.size

    def feed(self, chunk: bytes, now: float) -> None:
        cut = chunk.rfind(b"\n") + 1
        # Only complete lines are written, so a reader of the file never sees a line without its end.
        if cut:
            lines = b"".join([*self._rest, chunk[:cut]])
            if self._event_start in lines:
                lines = self._take_events(lines)
            # Only output with progress bars pays for a look at each line.
            if lines and (self._live or _LIVE in lines):
                lines = self._take_live(lines, now)
            if lines:
                self._write(lines, now)
            self._rest, self._rest_size = [], 0
        if cut < len(chunk):
            self._rest.append(chunk[cut:])
            self._rest_size += len(chunk) - cut
            if self._rest_size > MAX_LINE_BYTES:
                self._flush(now)

    def say(self, text: str, now: float) -> None:
        """Write one line of the controller itself."""
        self._flush(now)
        self._write(f"{text}\n".encode(), now)

    def close(self, now: float) -> None:
        self._flush(now)
        if self._live:
            for line in self._live.values():
                self._file.write(line.replace(_LIVE, b"] ", 1))
            self._live = {}
            self._write_live()
        self._file.close()
        self._events.close()

    def _take_events(self, lines: bytes) -> bytes:
        """Return the lines without the supervisor's events, which go into their own file."""
        # At the start of a line only: a text may hold these bytes as well.
        pattern = b"^" + re.escape(self._event_start) + b"(.*\n)"
        return re.sub(pattern, lambda line: b"" if self._events.take(line[1]) else line[0], lines, flags=re.MULTILINE)

    def _take_live(self, lines: bytes, now: float) -> bytes:
        """Return the lines without states of progress bars, and show the newest states in the live file."""
        before, kept = dict(self._live), []
        for text in lines[:-1].split(b"\n"):
            line = text + b"\n"
            prefix, mark, _ = line.partition(_LIVE)
            # Only behind the prefix of a rank of this host: a text, or a foreign image, may have such bytes as well.
            if mark and prefix.startswith(self._rank_prefix) and prefix[len(self._rank_prefix) :].isdigit():
                self._live[prefix] = stamp(now) + line
                self.states.append(self._live[prefix])
                continue
            # Any other line of the rank ends its bar.
            self._live.pop(line.partition(b"] ")[0], None)
            kept.append(line)
        if self._live != before:
            self._write_live()
        return b"".join(kept)

    def _write_live(self) -> None:
        # A full disk: the bars stand still, and the job continues. No pathlib: controllers start without it.
        with contextlib.suppress(OSError):
            if not self._live:
                os.unlink(self._live_path)  # noqa: PTH108
                return
            write_whole(self._live_path, b"".join(self._live.values()))

    def _flush(self, now: float) -> None:
        if self._rest:
            self._write(b"".join(self._rest) + b"\n", now)
            self._rest, self._rest_size = [], 0

    def _write(self, lines: bytes, now: float) -> None:
        mark = stamp(now)
        self._file.write(mark + lines[:-1].replace(b"\n", b"\n" + mark) + b"\n")


def _names(value: object) -> tuple[str, ...]:
    """Return the names in a member of an event; any program of an image may write one."""
    names = value if isinstance(value, list) else []
    return tuple(name[:_NAME_CHARS] for name in names[:_MAX_NAMES] if isinstance(name, str) and name.isprintable())


def say(path: str, text: str) -> None:
    """Append a line, or several, to a log that no process writes at this moment."""
    log = LogFile(path)
    log.say(text, time.time())
    log.close(time.time())


def requests_folder(logs: str) -> str:
    """Return the folder in which clients leave requests, next to that of the logs.

    >>> requests_folder("/jobs/digits-1/logs")
    '/jobs/digits-1/requests'
    """
    return f"{os.path.dirname(logs)}/requests"  # noqa: PTH120
