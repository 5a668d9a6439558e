"""`python -m herringbone.backends.waiter JOB < config`: holds a job's place in line, and starts the job on its turn.

    wait         asleep in `select`; those whose turn may come soon are woken through their tickets' FIFOs
    granted      the client's part of the submission: a controller, hosts; then this process ends
    SIGTERM      leave the line: the job is Stopped
    max_wait     leave the line: Stopped, MaxWaitTimeExceeded

`JobWaiter` is this life; `Waiter` has the line of this machine, `backends.ssh.waiter` those of others.

A machine may have a thousand of these processes, so this module imports little before the job's turn is near.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time

from msgspec.structs import replace

from herringbone.slots.claim import Claim, Line
from herringbone.slots.folder import LockBusyError, SlotsFolder
from herringbone.slots.line import Granted, Waiting, rank_of
from herringbone.slots.probe import NvidiaSmi
from herringbone.slots.release import POKED
from herringbone.slots.ticket import decode
from herringbone.system.processes import identity
from herringbone_contract.errors import HerringboneError, HostError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from herringbone.backends.detached import DetachedBackend
    from herringbone.records.home import Home
    from herringbone.slots.pending import WaiterConfig

SIGNALS = (signal.SIGTERM, signal.SIGINT)
# Nobody wakes the waiters when a process is killed, so the first ones look from time to time; looks may take this part
# of the time, as a long line takes milliseconds to read.
_LOOK_SECONDS, _SHARE = 0.5, 50
# A look also takes long because of a slow driver or a lock that somebody keeps, which may be over soon.
_LONGEST_LOOK_SECONDS = 10.0
# A process outside of Herringbone is seen by asking the driver, which is slow.
_FOREIGN_SECONDS = 5.0
_LONGEST_SECONDS = 300.0
# Systems remove files of /tmp that nothing has touched for ten days.
_TOUCH_SECONDS = 24 * 3600.0
# Containers without a controller stop after the grace of their ranks.
_LEFT_SECONDS = 180.0
# Waiters at these places have their modules loaded.
_READY_PLACES = 2
COULD_NOT_START = "the job waited in line and could not start"
MAX_WAIT_EXCEEDED = "MaxWaitTimeExceeded"


class JobWaiter:
    """Holds the place of one job: `run`. `deadline` is in seconds since 1970, None without `max_wait`."""

    # Becomes readable when the job's turn may have come.
    _woken: int

    def __init__(self, job: str, deadline: float | None) -> None:
        self._job, self._deadline = job, deadline
        # Set by the signal handler in this thread.
        self._stopped = False

    @property
    def _home(self) -> Home:
        raise NotImplementedError

    def _enter(self) -> None:
        """Do what comes before the first look."""

    def _take(self) -> float | None:
        """Take what the job needs, and return None; else return the seconds until the next look."""
        raise NotImplementedError

    def _leave(self) -> None:
        """Give up the place and what was taken."""
        raise NotImplementedError

    def _start(self) -> None:
        """Start the job on what was taken."""
        raise NotImplementedError

    def run(self) -> None:
        """Wait for the job's turn, and start the job or say why it does not start."""
        wakeup = watch_signals(self._stop)
        try:
            self._enter()
            why = self._wait(wakeup)
            # From here on a request to stop waits until there is a job to stop.
            signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
            if why is None and not self._stopped:
                self._start()
            else:
                self._leave()
                stopped(self._home, self._job, why or "Stopped")
        except BaseException as error:  # noqa: BLE001 - no other process would record that the job is over
            self._leave()
            fail(self._home, self._job, error)

    def _wait(self, wakeup: int) -> str | None:
        """Return None when the job was granted what it needs, else the secondary status of its end."""
        while not self._stopped:
            pause = self._take()
            if pause is None:
                return None
            left = float("inf") if self._deadline is None else self._deadline - time.time()
            if left <= 0:
                return MAX_WAIT_EXCEEDED
            readable, _, _ = select.select([self._woken, wakeup], [], [], min(pause, left))
            for descriptor in readable:
                with contextlib.suppress(BlockingIOError):
                    os.read(descriptor, 4096)
        return "Stopped"

    def _stop(self, *_: object) -> None:
        self._stopped = True


class Waiter(JobWaiter):
    """Holds one job in the line of this machine: `Waiter(config).run()`."""

    def __init__(self, config: WaiterConfig) -> None:
        super().__init__(config["job"], config["deadline"])
        self._config = config
        claim = config["claim"]
        ticket = decode(claim["ticket"], config["ticket"].encode())
        assert ticket is not None
        # As the client has noted it: this process writes the ticket from now on.
        ticket = replace(ticket, waiter=identity(os.getpid()) or "")
        self._woken = claim["descriptor"]
        # Children that are no controllers must not keep the ticket alive.
        os.set_inheritable(self._woken, False)
        self._claim = Claim(Line(SlotsFolder(claim["folder"]), NvidiaSmi(), os.environ), ticket, self._woken)
        self._backend: DetachedBackend | None = None
        self._touch_at = 0.0
        self._complaint = ""

    @property
    def _home(self) -> Home:
        return self._load().home

    def _leave(self) -> None:
        self._claim.leave()

    def _take(self) -> float | None:
        begin = time.monotonic()
        if begin >= self._touch_at:
            self._claim.touch()
            self._touch_at = begin + _TOUCH_SECONDS
        decision = self._advance()
        if isinstance(decision, Granted):
            self._wait_until_free(decision)
            return None
        if decision.place <= _READY_PLACES:
            self._load()
        return pause_after(decision, time.monotonic() - begin, rank_of(self._claim.ticket.wants, decision))

    def _wait_until_free(self, granted: Granted) -> None:
        """Wait for what a killed controller left on the devices, whose claim it has lost; not for ever."""
        backend = self._load()
        deadline = time.monotonic() + _LEFT_SECONDS
        # Where nobody can tell now, the start of the hosts finds out.
        with contextlib.suppress(HerringboneError):
            while not self._stopped and time.monotonic() < deadline and not backend.are_free(granted.devices):
                time.sleep(_LOOK_SECONDS)

    def _advance(self) -> Granted | Waiting:
        try:
            return self._claim.advance()
        except (LockBusyError, OSError) as error:
            # A process that is paused may hold the lock, or the disk is full now: no reason to give up a place.
            if (text := str(error)) != self._complaint:
                self._complaint = text
                print(text, file=sys.stderr, flush=True)
            return Waiting(1)

    def _start(self) -> None:
        from herringbone.plan.plan import parse_plan
        from herringbone.records.index import STARTING, JobIndex
        from herringbone.records.job_events import JobEvents

        backend, job = self._load(), self._job
        if not JobIndex(backend.home.index).update(job, unless_done=True, secondary_status=STARTING):
            # Somebody has ended or removed the job.
            self._claim.leave()
            return
        JobEvents(backend.home.job(job).job_events).state(STARTING)
        backend.launch(parse_plan(self._config["plan"]), self._claim, filled=True)

    def _load(self) -> DetachedBackend:
        if self._backend is None:
            from herringbone.backends.detached import DetachedBackend
            from herringbone.backends.registry import backend_named

            backend = backend_named(self._config["backend"])
            assert isinstance(backend, DetachedBackend)
            self._backend = backend
        return self._backend


def watch_signals(stop: Callable[..., None]) -> int:
    """Make requests to stop call `stop` and wake `select`; return the descriptor on which they arrive."""
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    for number in SIGNALS:
        signal.signal(number, stop)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # The client blocked them before the start; one that has arrived meanwhile is delivered now.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    return read_end


def stopped(home: Home, job: str, why: str) -> None:
    """Write the end of a job that has left the line; `why` is its secondary status."""
    from herringbone.backends.lifecycle import settle
    from herringbone.records.index import STOPPED, JobIndex

    settle(JobIndex(home.index), job, {"status": STOPPED, "secondary_status": why, "ended": time.time()})


def fail(home: Home, job: str, error: BaseException) -> None:
    """Write the failure of a job that could not start on its turn."""
    import traceback

    from herringbone.backends.lifecycle import settle
    from herringbone.records.index import JobIndex
    from herringbone_contract.failure import Failure

    # Standard error is the job's controller.log.
    traceback.print_exception(error)
    # A machine that did not answer is a matter of time, which a search of many trials must see.
    is_plain = isinstance(error, HerringboneError) and not isinstance(error, HostError)
    kind = "" if is_plain else type(error).__name__
    failure = Failure(exit_code=0, exception=kind, message=f"{COULD_NOT_START}: {error}")
    settle(JobIndex(home.index), job, failure)


def pause_after(waiting: Waiting, cost: float, rank: int) -> float:
    """Return the seconds until the next look of a waiter that nobody wakes.

    >>> pause_after(Waiting(1), 0.001, 1), pause_after(Waiting(50), 0.04, 1), pause_after(Waiting(100), 0.04, 100)
    (0.5, 2.0, 100.0)

    `cost` is the time of a look, `rank` the place among the jobs that wait for the same devices (`line.rank_of`).
    """
    if waiting.foreign:
        return _FOREIGN_SECONDS
    if rank <= POKED:
        return min(_LONGEST_LOOK_SECONDS, max(_LOOK_SECONDS, _SHARE * cost))
    return min(_LONGEST_SECONDS, float(rank))


def main() -> None:
    text = sys.stdin.buffer.read()
    # Without a config, the client could not prepare the job, or was killed.
    if text:
        Waiter(json.loads(text)).run()


if __name__ == "__main__":
    main()
