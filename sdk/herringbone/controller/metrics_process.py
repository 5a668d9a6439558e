"""Run `herringbone.events.from_log` next to a job: the process that finds the metrics in the job's log.

A user's regular expression may search for ever, so the controller's loop runs none.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from herringbone.controller.config import ControllerConfig
    from herringbone.controller.hosts import Host

# The end of a job waits this long for the metrics of its last lines.
_PATIENCE_SECONDS = 10.0
_POLL_SECONDS = 0.002
_NOTES_BYTES = 65_536


class MetricsProcess:
    """The process of one job, which starts when it is first needed and lives until `finish`.

    >>> process = MetricsProcess(config)                             # doctest: +SKIP
    >>> process.start(hosts)                                         # doctest: +SKIP
    >>> process.finish()                                             # doctest: +SKIP
    []
    """

    def __init__(self, config: ControllerConfig, *, patience: float = _PATIENCE_SECONDS) -> None:
        self._config = config
        self._patience = patience
        self._pid: int | None = None
        # The end of a pipe whose closing tells the process that the job is over, and one that has its notes.
        self._input = self._notes = -1

    @property
    def is_wanted(self) -> bool:
        """Report whether the job has metric definitions."""
        return bool(self._config["metric_definitions"])

    @property
    def pids(self) -> frozenset[int]:
        """The process, if it was started: no orphan of a host."""
        return frozenset(() if self._pid is None else (self._pid,))

    def start(self, hosts: Sequence[Host]) -> None:
        """Start the process at the beginning of the hosts' present attempt, unless it was started before."""
        if self._pid is not None:
            return
        # All four ends close on exec: no host inherits one, which would hide the end of the job.
        read_end, self._input = os.pipe()
        self._notes, write_end = os.pipe()
        try:
            self._pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-m", "herringbone.events.from_log"],
                os.environ,
                file_actions=[(os.POSIX_SPAWN_DUP2, read_end, 0), (os.POSIX_SPAWN_DUP2, write_end, 1)],
                setsigmask=[],
                setsigdef=[signal.SIGPIPE],
            )
        except OSError:
            # No process could be started. The job goes on, and its log has the values.
            self._pid = -1
        finally:
            os.close(read_end)
            os.close(write_end)
        request = {
            "logs": self._config["logs"],
            "hosts": {host.name: host.log_begins for host in hosts},
            "definitions": self._config["metric_definitions"],
        }
        self._send(json.dumps(request).encode() + b"\n")

    def finish(self) -> list[str]:
        """Wait until the process has read the whole log, kill it if that takes too long, and return its notes."""
        if self._pid is None:
            return []
        os.close(self._input)
        deadline = time.monotonic() + self._patience
        notes, is_read = self._read_notes(deadline)
        while self._pid > 0 and not _has_ended(self._pid):
            if time.monotonic() > deadline:
                os.kill(self._pid, signal.SIGKILL)
                # A killed process is gone after microseconds, and its zombie stays ours until this call.
                os.waitpid(self._pid, 0)
                break
            time.sleep(_POLL_SECONDS)
        os.close(self._notes)
        self._pid = None
        if not is_read:
            notes.append(f"the log was not searched to its end for metrics within {self._patience:g} s")
        return notes

    def _send(self, request: bytes) -> None:
        view = memoryview(request)
        try:
            # Definitions of more than a pipe's 64 KiB are read while they are written.
            while view:
                view = view[os.write(self._input, view) :]
        except BrokenPipeError:
            # It died at its start, and `finish` says so.
            return

    def _read_notes(self, deadline: float) -> tuple[list[str], bool]:
        """Return the lines that the process writes until its end, and whether the end came in time."""
        text = b""
        while select.select([self._notes], [], [], max(0.0, deadline - time.monotonic()))[0]:
            chunk = os.read(self._notes, _NOTES_BYTES)
            if not chunk:
                return text.decode("utf-8", "replace").splitlines(), True
            text = (text + chunk)[:_NOTES_BYTES]
        return text.decode("utf-8", "replace").splitlines(), False


def _has_ended(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        # The site has collected it, with the orphans of its hosts.
        return True
