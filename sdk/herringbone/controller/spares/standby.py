"""Standbys: hosts that have started ahead for a job's next attempt, and wait for their start line.

    attempt 1    hosts run ---- `_AFTER_SECONDS` ----> a standby for each host imports what its ranks had imported
                   | a host is lost
                   v
    attempt 2    begins in the standbys ---- `_AFTER_SECONDS` ----> new standbys, for attempt 3

A standby costs a running job memory, and one core at low priority while it imports. It has no part in the attempt that
runs: nobody signals it, and it prints nothing. Its end is that of its line, so none outlives the controller.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

from herringbone.system.processes import free_memory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from herringbone.controller.hosts import Host

# A job has taken its first steps by then; while a script still imports, standbys of low priority share its cores.
_AFTER_SECONDS = 5.0
_NEVER = float("inf")
# A standby that dies is replaced this often in an attempt.
_MOST_REPLACED = 2
# What a rank's imports take at most, as torch does; half of the free memory must hold that of all ranks.
RANK_BYTES = 768 << 20


class Standbys:
    """The standbys of one job's hosts on this machine; `start(host)` starts one, and raises `OSError`."""

    def __init__(self, run_folder: str, start: Callable[[Host], Host]) -> None:
        self._folder, self._start = run_folder, start
        self._hosts: Sequence[Host] = ()
        self._standbys: dict[str, Host] = {}
        self._replaced, self._delay = 0, _AFTER_SECONDS
        # The time of `time.monotonic()` at which standbys are started.
        self.due = _NEVER

    def starts(self, host: str) -> str:
        """Return the beginning of the files in which a host keeps its ranks' start messages."""
        return f"{self._folder}/starts-{host}-"

    @property
    def pids(self) -> set[int]:
        """The processes that wait."""
        return {standby.pid for standby in self._standbys.values()}

    def begin(self, hosts: Sequence[Host]) -> None:
        """Note that an attempt begins on these hosts."""
        self._hosts, self._replaced = hosts, 0
        self._delay = _AFTER_SECONDS
        self.due = time.monotonic() + self._delay

    def act(self) -> None:
        """Start the standbys of hosts that run and have none."""
        self.due = _NEVER
        hosts = [host for host in self._hosts if host.exit_code is None and host.name not in self._standbys]
        ranks = {host.name: count for host in hosts if (count := self._count_ranks(host.name))}
        if len(ranks) < len(hosts):
            # Packages may still be installed. Ranks of mpirun's never come, so this wakes the controller less and less.
            self._delay *= 2
            self.due = time.monotonic() + self._delay
        hosts = [host for host in hosts if host.name in ranks]
        if not hosts:
            return
        needed, free = sum(ranks.values()) * RANK_BYTES, free_memory()
        if free is not None and needed > free / 2:
            self._say(
                hosts[0],
                f"no standby for another attempt: {sum(ranks.values())} ranks may need {needed >> 20} MiB more, and "
                f"half of the free memory is {free >> 21} MiB; a restart imports again",
            )
            return
        for host in hosts:
            try:
                self._standbys[host.name] = self._start(host)
            except OSError as error:
                self._say(host, f"no standby for another attempt: {error.strerror}; a restart imports again")

    def take(self, name: str) -> Host | None:
        """Return the standby of a host, which is no longer one; None where there is none that lives."""
        return self._standbys.pop(name, None)

    def reaped(self, pid: int) -> None:
        """Note that a child has ended; one that is no standby is ignored."""
        for name, standby in list(self._standbys.items()):
            if standby.pid == pid:
                del self._standbys[name]
                text = _close(standby)
                self._replaced += 1
                again = self._replaced <= _MOST_REPLACED
                self.due = time.monotonic() + _AFTER_SECONDS if again else _NEVER
                remedy = "another one follows" if again else "no other one follows, so a restart imports again"
                self._say(standby, f"its standby has ended{text}; {remedy}")

    def end(self) -> None:
        """End all standbys, and reap them."""
        self.due = _NEVER
        while self._standbys:
            standby = self._standbys.popitem()[1]
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(standby.pid, signal.SIGKILL)
                os.waitpid(standby.pid, 0)
            _close(standby)

    def _count_ranks(self, name: str) -> int:
        prefix = os.path.basename(self.starts(name))  # noqa: PTH119 - pathlib costs the controller milliseconds
        try:
            return sum(file.startswith(prefix) for file in os.listdir(self._folder))  # noqa: PTH208
        except OSError:
            return 0

    @staticmethod
    def _say(host: Host, text: str) -> None:
        host.log.say(f"[{host.name}] {text}", time.time())


def _close(standby: Host) -> str:
    """Close what a standby that has ended had; return the last line that it printed, for a message."""
    standby.close_line()
    text = b""
    if standby.output is not None:
        with contextlib.suppress(OSError):
            text = os.read(standby.output, 1 << 16)
        standby.close_output()
    lines = text.decode("utf-8", "replace").split("\n")
    last = next((line for line in reversed(lines) if line.strip()), "")
    return f": {last[:300]}" if last else ""
