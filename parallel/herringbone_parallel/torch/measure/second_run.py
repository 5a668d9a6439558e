"""Run the script a second time with twice the ranks, to learn whether its batch depends on their number.

    second = SecondRun(measure)     # forks: the script has not run yet
    ...                             # the first run
    second.batch(seconds=60)        # 16, where the first run had 32

The second run is a child that waits until the first one is over, so that the two never use the same files at once.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable


class SecondRun:
    """The forked process of a second run; `measure` returns the samples of the first step there."""

    def __init__(self, measure: Callable[[], int | None]) -> None:
        starts, start = os.pipe()
        answers, answer = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            # A failure of any kind is no answer.
            try:
                os.close(start)
                os.close(answers)
                if os.read(starts, 1):
                    _silence()
                    os.write(answer, str(measure() or "").encode())
            finally:
                os._exit(0)
        os.close(starts)
        os.close(answer)
        self._start, self._answers = start, answers

    def batch(self, seconds: float) -> int | None:
        """Let the child run; return its answer, None if it has none after `seconds`."""
        os.write(self._start, b"1")
        ready, _, _ = select.select([self._answers], [], [], seconds)
        text = os.read(self._answers, 64) if ready else b""
        self.drop()
        return int(text) if text else None

    def drop(self) -> None:
        """End the child."""
        os.close(self._start)
        os.close(self._answers)
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)


def _silence() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
