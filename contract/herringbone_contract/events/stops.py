"""The question of a script whether its job is asked to go: `herringbone.should_stop`; `stop_file` has the rule."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

from herringbone_contract.events import emit, stop_file

# Supervisors answer each other in milliseconds.
_POLL_SECONDS = 0.001
# Slurm signals all processes of a step, and the supervisor's word may come a moment later.
_WORD_SECONDS = 1.0
_SLURM = "SLURM_JOB_ID"


class Asking:
    """The calls of one rank; a forked child asks without being counted."""

    def __init__(self, path: str | None, rank: int | None) -> None:
        self._pid, self._rank, self._calls = os.getpid(), rank or 0, 0
        self._file: int | None = None
        if path is not None and self._rank < stop_file.MOST_RANKS:
            # A host whose folder takes no file runs its job all the same.
            with contextlib.suppress(OSError):
                self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                self._outlive_slurm()

    def ask(self) -> bool:
        """Count a call, and return its answer."""
        if self._file is None:
            return False
        is_own = os.getpid() == self._pid
        try:
            if is_own:
                self._calls += 1
                stop_file.write(self._file, self._calls, self._rank)
            while (answer := stop_file.answer(stop_file.read(self._file), self._calls)) is None and is_own:
                time.sleep(_POLL_SECONDS)
        except OSError:
            # The disk is full, or the host is gone.
            return False
        return bool(answer)

    def end(self) -> None:
        """Note that no call will follow: a later stop need not wait for one."""
        if self._file is not None and os.getpid() == self._pid and not self.ask():
            stop_file.write(self._file, 0, self._rank)

    def _outlive_slurm(self) -> None:
        is_main = threading.current_thread() is threading.main_thread()
        if _SLURM in os.environ and is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._outlive)

    def _outlive(self, number: int, _frame: FrameType | None) -> None:
        """Die of SIGTERM unless the supervisors agree on a call at this moment."""
        deadline = time.monotonic() + _WORD_SECONDS
        with contextlib.suppress(OSError):
            while os.getpid() == self._pid and self._file is not None and time.monotonic() < deadline:
                if stop_file.read(self._file) != stop_file.RUN:
                    return
                time.sleep(_POLL_SECONDS)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


_asking: Asking | None = None


def should_stop() -> bool:
    """Return True when the job is asked to go: save, and end the script.

        for batch in loader:
            train(batch)
            if herringbone.should_stop():
                save()
                break

    The job is asked by `herringbone stop`, the end of `max_run`, a preemption, or its `drain_notice`. All ranks of the
    job get True at the same of their calls, and from then on, so each calls it once a step. Until the script has ended
    no rank gets SIGTERM; after the grace, SIGKILL. A script that never calls gets SIGTERM at once. Outside a job the
    answer is False.
    """
    return _own().ask()


def stop_when_asked(save: Callable[[], object], is_ready: Callable[[], bool] = lambda: True) -> None:
    """Ask for a script that does not ask itself; where the answer is True, save and end the script.

    A script that is not ready, because gradients wait for a step, goes on to its next question.
    """
    if asks_for_script() and should_stop() and is_ready():
        save()
        # The rest of the script is for a training that has come to its end.
        raise SystemExit(0)


def asks_for_script() -> bool:
    """Say whether a library may ask in the script's place: not where the script handles SIGTERM, which it then gets."""
    handler = signal.getsignal(signal.SIGTERM)
    return handler in (signal.SIG_DFL, None) or getattr(handler, "__self__", None) is _asking is not None


def no_more() -> None:
    """Note that the script asks no more, so that a later stop does not wait for it."""
    if _asking is not None:
        _asking.end()


def _own() -> Asking:
    global _asking
    if _asking is None:
        fifo = os.environ.get(emit.VARIABLE)
        _asking = Asking(fifo and stop_file.path_of(fifo), emit.rank())
    return _asking
