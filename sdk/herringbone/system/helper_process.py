"""A process next to a job that the controller talks to through two pipes: it gets lines, and answers at its end.

The controller's loop must wait for nothing, so whatever may take long has a process of its own.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable

_POLL_SECONDS = 0.002
# How often a wait without a limit asks whether it is to end.
_CHECK_SECONDS = 0.2
_ANSWER_BYTES = 65_536


class HelperProcess:
    """The process of `python -m module`, which lives from `start` to `finish`; closing its input tells it to end."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._pid: int | None = None
        # The end of a pipe whose closing tells the process that the job is over, and one that has its answer.
        self._input = self._answer = -1

    @property
    def is_started(self) -> bool:
        return self._pid is not None

    @property
    def pids(self) -> frozenset[int]:
        """The process, if it was started: no orphan of a host."""
        return frozenset(() if self._pid is None else (self._pid,))

    @property
    def answer(self) -> int:
        """The descriptor from which the process's answer is read, while it runs."""
        return self._answer

    def start(self, request: bytes) -> None:
        """Start the process and send it its first line. A process that cannot be started has no answer."""
        # All four ends close on exec: no host inherits one, which would hide the end of the job.
        read_end, self._input = os.pipe()
        self._answer, write_end = os.pipe()
        try:
            self._pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-m", self._module],
                os.environ,
                file_actions=[(os.POSIX_SPAWN_DUP2, read_end, 0), (os.POSIX_SPAWN_DUP2, write_end, 1)],
                setsigmask=[],
                setsigdef=[signal.SIGPIPE],
            )
        except OSError:
            self._pid = -1
        finally:
            os.close(read_end)
            os.close(write_end)
        self.send(request)

    def send(self, line: bytes) -> None:
        """Send a line, without its end."""
        view = memoryview(line + b"\n")
        # A process that died at its start is noticed by `finish`.
        with contextlib.suppress(BrokenPipeError):
            # Lines of more than a pipe's 64 KiB are read while they are written.
            while view:
                view = view[os.write(self._input, view) :]

    def offer(self, line: bytes) -> None:
        """Send a whole line of at most `PIPE_BUF` bytes, 4 KiB, if the process runs and the pipe has room for it."""
        # A pipe that counts as writable takes so many bytes at once.
        if self._pid is not None and len(line) <= select.PIPE_BUF and select.select([], [self._input], [], 0)[1]:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._input, line)

    def finish(self, patience: float | None, is_ended: Callable[[], bool] = lambda: False) -> tuple[str, bool]:
        """Close the input, and return the answer and whether it is whole; a process that is too late is killed.

        Without `patience` in seconds, only `is_ended` ends the wait.
        """
        if self._pid is None:
            return "", True
        os.close(self._input)
        deadline = None if patience is None else time.monotonic() + patience
        answer, is_whole = self._read_answer(deadline, is_ended)
        while self._pid > 0 and not _has_ended(self._pid):
            if not is_whole or (deadline is not None and time.monotonic() > deadline):
                os.kill(self._pid, signal.SIGKILL)
                # A killed process is gone after microseconds, and its zombie stays ours until this call.
                os.waitpid(self._pid, 0)
                break
            time.sleep(_POLL_SECONDS)
        os.close(self._answer)
        self._pid = None
        return answer, is_whole

    def leave(self) -> None:
        """Close the input and let the process end by itself."""
        if self._pid is not None:
            os.close(self._input)
            os.close(self._answer)
            self._pid = None

    def _read_answer(self, deadline: float | None, is_ended: Callable[[], bool]) -> tuple[str, bool]:
        text = b""
        while True:
            # One that somebody has stopped would be waited for without end.
            with contextlib.suppress(ProcessLookupError):
                if self._pid is not None and self._pid > 0:
                    os.kill(self._pid, signal.SIGCONT)
            rest = _CHECK_SECONDS if deadline is None else max(0.0, deadline - time.monotonic())
            if not select.select([self._answer], [], [], rest)[0]:
                if deadline is not None or is_ended():
                    return text.decode("utf-8", "replace"), False
                continue
            chunk = os.read(self._answer, _ANSWER_BYTES)
            if not chunk:
                return text.decode("utf-8", "replace"), True
            text = (text + chunk)[:_ANSWER_BYTES]


def _has_ended(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        # The site has collected it, with the orphans of its hosts.
        return True
