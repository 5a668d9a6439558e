"""One microbatch runs at a time on a rank; who is next, the schedule says.

Each microbatch is a thread (threads, because grad mode and autocast are thread-local). The holder of the baton runs;
when it must wait for a message it hands the baton on, to the ready microbatch that the schedule names. With none
ready, the next message decides.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, NamedTuple

from herringbone_parallel.core.pipeline.schedule import Ready, Schedule
from herringbone_parallel.torch.model_parallel.runtime.cpu_affinity import Cores, Placing

# Who waits for a step looks this often whether it still goes on.
_LOOK_SECONDS = 0.5

FRESH, FORWARD, BACKWARD, WEIGHT, ENDED = range(5)


class Turn(NamedTuple):
    """Something that microbatches do in the order of their numbers: the `visit`-th call of one module, say."""

    phase: int
    what: Hashable
    visit: int


class Wait(NamedTuple):
    """A message that has not come: its key, and the microbatch that waits, None for the step's own thread."""

    microbatch: int | None
    key: Any


class Standing(NamedTuple):
    """What a rank on which nothing runs waits for; another one whenever it has moved in between."""

    phases: tuple[int, ...]
    waits: tuple[Wait, ...]


class StepAbandonedError(BaseException):
    """Unwinds the other microbatches after one failed; never seen by users."""


class Crew:
    """Threads that run one microbatch after another, kept from step to step.

    The one that was free last is taken first: the memory its microbatches have freed is warm, while a new thread would
    get fresh pages from the system. There are never more than microbatches were live at once.
    """

    def __init__(self) -> None:
        self._idle: list[_Worker] = []

    def start(self, work: Callable[[], None], placing: Placing | None = None) -> None:
        """Run `work` on a thread; with a `placing`, on the core of the caller, who is about to leave it."""
        worker = self._idle.pop() if self._idle else _Worker(self._idle)
        worker.work = work
        worker.placing = placing
        if placing is not None:
            worker.cores = placing.allowed()
            assert worker.thread.native_id is not None
            placing.call_over(worker.thread.native_id)
        worker.wake.release()

    def dismiss(self) -> None:
        """End the idle threads."""
        while self._idle:
            worker = self._idle.pop()
            worker.work = None
            worker.wake.release()
            worker.thread.join()


class _Worker:
    """A thread of the crew; it goes back to the idle ones before it tells that its work is done."""

    def __init__(self, idle: list[_Worker]) -> None:
        self._idle = idle
        self.work: Callable[[], None] | None = None
        self.placing: Placing | None = None
        self.cores: Cores = frozenset()
        self.wake = _sleeping_lock()
        self.thread = threading.Thread(target=self._run, name="smp-microbatch", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while True:
            self.wake.acquire()
            if self.work is None:
                return
            if self.placing is not None:
                self.placing.free(self.cores)
            self.work()
            self.work = None
            self._idle.append(self)


def _sleeping_lock() -> threading.Lock:
    """Return a taken lock: acquire() sleeps until another thread releases it. Cheaper than a semaphore."""
    lock = threading.Lock()
    lock.acquire()
    return lock


class _Runner:
    """One microbatch: its phase, what it waits for, and the lock it sleeps on."""

    __slots__ = ("asleep", "cores", "index", "phase", "thread", "turns", "wake", "wanted")

    def __init__(self, index: int) -> None:
        self.index = index
        self.phase = FRESH
        self.wanted: Any = None
        # What this microbatch has done that the next one may do only afterwards.
        self.turns: set[Turn] = set()
        self.wake = _sleeping_lock()
        self.asleep = False
        self.thread = 0
        self.cores: Cores = frozenset()

    def rouse(self, placing: Placing | None = None) -> None:
        """Wake the microbatch if it sleeps; under the baton's lock, as the flag is."""
        if self.asleep:
            self.asleep = False
            if placing is not None:
                placing.call_over(self.thread)
            self.wake.release()


class Baton:
    """Runs `body(index)` for each microbatch, one at a time, in the schedule's order.

        baton = Baton(schedule, crew, count=4, body=run_microbatch, keep=randomness.keep)
        baton.run()

    Inside a body, `wait` returns a message, `enter_backward` changes the phase, and `await_turn` before and `pass_turn`
    after an action keep that action in the order of the microbatches, so that sums and running statistics come out the
    same to the last bit whatever the timing. `deliver(key, content)` may be called from any thread. `note(phase, index,
    start, end)` hears of each stretch that a microbatch has held the baton, in seconds of `time.monotonic`. `placing`
    gives the next holder the core of the one before.
    """

    def __init__(
        self,
        schedule: Schedule,
        crew: Crew,
        count: int,
        body: Callable[[int], None],
        keep: Callable[[], Callable[[], None]],
        note: Callable[[int, int, float, float], None] | None = None,
        placing: Placing | None = None,
    ) -> None:
        self._schedule = schedule
        self._crew = crew
        self._keep = keep
        self._body = body
        self._note = note
        self._placing = placing
        self._held = (FRESH, 0.0)
        self._runners = [_Runner(index) for index in range(count)]
        self._lock = threading.Lock()
        self._arrival = threading.Condition(self._lock)
        # By key, in the order of arrival: each backward through a value sends its gradient under the same key.
        self._mail: dict[Any, list[Any]] = {}
        self._holder: _Runner | None = None
        self._failure: BaseException | None = None
        self._left = count
        self._running = 0
        self._started = False
        self._done = threading.Event()
        self._wanted_outside: Any = None
        self.peak_live = 0

    def run(self, look: Callable[[], None] | None = None) -> None:
        """Run all microbatches; raises the first exception that one of them raised. Calls `look` now and then."""
        with self._lock:
            self._started = True
            self._pass_on()
        while not self._done.wait(None if look is None else _LOOK_SECONDS):
            if look is not None:
                look()
        # It knows the baton: together they would keep the step's tensors until the next collection of garbage.
        del self._body
        if self._failure is not None:
            raise self._failure

    def deliver(self, key: Any, content: Any) -> None:
        with self._lock:
            self._mail.setdefault(key, []).append(content)
            self._arrival.notify_all()
            self._pass_on()

    def fail(self, failure: BaseException) -> None:
        """End the step with this failure; `run` raises it when every microbatch under way has unwound."""
        with self._lock:
            if self._failure is not None:
                return
            self._failure = failure
            self._arrival.notify_all()
            for runner in self._runners:
                runner.rouse()
            if self._running == 0:
                self._done.set()

    def wait(self, index: int, key: Any) -> Any:
        """Return the message with this key, letting others run meanwhile."""
        runner = self._runners[index]
        with self._lock:
            if key in self._mail:
                return self._open(key)
            runner.wanted = key
            restore = self._lie_down(runner)
        self._sleep(restore, runner)
        with self._lock:
            return self._open(key)

    def wait_outside(self, key: Any, look: Callable[[], None]) -> Any:
        """Return the message with this key, for the thread that called `run`, when all microbatches are done."""
        while True:
            with self._arrival:
                self._wanted_outside = key
                if self._arrival.wait_for(lambda: key in self._mail or self._failure is not None, _LOOK_SECONDS):
                    self._wanted_outside = None
                    if self._failure is not None:
                        raise self._failure
                    return self._open(key)
            look()

    def standing(self) -> Standing | None:
        """Return what is waited for, None while something runs."""
        with self._lock:
            if self._holder is not None or self._failure is not None:
                return None
            waits = [Wait(runner.index, runner.wanted) for runner in self._runners if self._lacks(runner.wanted)]
            if self._lacks(self._wanted_outside):
                waits.append(Wait(None, self._wanted_outside))
            return Standing(tuple(runner.phase for runner in self._runners), tuple(waits))

    def _lacks(self, wanted: Any) -> bool:
        return wanted is not None and not isinstance(wanted, Turn) and wanted not in self._mail

    def _open(self, key: Any) -> Any:
        contents = self._mail[key]
        first = contents.pop(0)
        if not contents:
            del self._mail[key]
        return first

    def await_turn(self, index: int, turn: Turn) -> None:
        """Return once the microbatch before has passed this turn, or has ended the phase it belongs to."""
        runner = self._runners[index]
        with self._lock:
            if self._has_turn(runner, turn):
                return
            runner.wanted = turn
            restore = self._lie_down(runner)
        self._sleep(restore, runner)

    def pass_turn(self, index: int, turn: Turn) -> None:
        """Let the next microbatch do this."""
        with self._lock:
            self._runners[index].turns.add(turn)

    def enter_backward(self, index: int) -> None:
        """Go on as a backward, when the schedule says so."""
        runner = self._runners[index]
        with self._lock:
            runner.phase = BACKWARD
            restore = self._lie_down(runner)
        self._sleep(restore, runner)

    def enter_weight(self, index: int) -> None:
        """Go on with the gradients of parameters, when the schedule says so and the microbatch before has ended."""
        runner = self._runners[index]
        with self._lock:
            runner.phase = WEIGHT
            runner.wanted = Turn(WEIGHT, "all of it", 1)
            restore = self._lie_down(runner)
        self._sleep(restore, runner)

    def _lie_down(self, runner: _Runner) -> Callable[[], None]:
        if self._failure is not None:
            raise StepAbandonedError
        runner.asleep = True
        if self._placing is not None:
            runner.thread, runner.cores = threading.get_native_id(), self._placing.allowed()
        restore = self._keep()
        if self._note is not None:
            self._note_stretch(self._note, runner)
        self._holder = None
        self._pass_on(self._placing)
        return restore

    def _sleep(self, restore: Callable[[], None], runner: _Runner) -> None:
        runner.wake.acquire()
        if self._placing is not None:
            self._placing.free(runner.cores)
        restore()
        if self._failure is not None:
            raise StepAbandonedError
        if self._note is not None:
            self._held = (runner.phase, time.monotonic())

    def _note_stretch(self, note: Callable[[int, int, float, float], None], runner: _Runner) -> None:
        phase, start = self._held
        note(phase, runner.index, start, time.monotonic())

    def _pass_on(self, placing: Placing | None = None) -> None:
        """Give the baton, if it is free, to the microbatch that the schedule names; with a `placing`, the core too."""
        fresh = self._choose(placing)
        if fresh is not None:
            self._crew.start(partial(self._run_from, fresh), placing)

    def _choose(self, placing: Placing | None) -> _Runner | None:
        """Do so, and return the microbatch if it is a fresh one, for which the caller finds a thread."""
        if not self._started or self._holder is not None or self._failure is not None:
            return None
        choice = self._schedule(self._ready())
        if choice is None:
            return None
        runner = self._runners[choice]
        self._holder = runner
        runner.wanted = None
        if runner.phase != FRESH:
            runner.rouse(placing)
            return None
        runner.phase = FORWARD
        self._running += 1
        self.peak_live = max(self.peak_live, self._live())
        return runner

    def _ready(self) -> Ready:
        able: dict[int, list[int]] = {FRESH: [], FORWARD: [], BACKWARD: [], WEIGHT: []}
        forwards_left = 0
        for runner in self._runners:
            forwards_left += runner.phase in (FRESH, FORWARD)
            if runner.phase != ENDED and self._able(runner):
                able[runner.phase].append(runner.index)
        return Ready(
            forward=tuple(able[FORWARD]),
            backward=tuple(able[BACKWARD]),
            fresh=tuple(able[FRESH]),
            live=self._live(),
            forwards_left=forwards_left,
            weight=tuple(able[WEIGHT]),
        )

    def _able(self, runner: _Runner) -> bool:
        wanted = runner.wanted
        if isinstance(wanted, Turn):
            return self._has_turn(runner, wanted)
        return wanted is None or wanted in self._mail

    def _has_turn(self, runner: _Runner, turn: Turn) -> bool:
        if runner.index == 0:
            return True
        before = self._runners[runner.index - 1]
        return before.phase > turn.phase or turn in before.turns

    def _live(self) -> int:
        return sum(runner.phase in (FORWARD, BACKWARD, WEIGHT) for runner in self._runners)

    def _run_from(self, runner: _Runner | None) -> None:
        """Run a microbatch, and as long as a fresh one is next, that one on the same thread."""
        while runner is not None:
            runner = self._run_one(runner)

    def _run_one(self, runner: _Runner) -> _Runner | None:
        if self._note is not None:
            self._held = (runner.phase, time.monotonic())
        try:
            self._body(runner.index)
        except StepAbandonedError:
            pass
        except BaseException as failure:  # noqa: BLE001  handed to the caller of run()
            self.fail(failure)
        with self._lock:
            if self._note is not None and self._holder is runner:
                self._note_stretch(self._note, runner)
            runner.phase = ENDED
            self._running -= 1
            self._left -= 1
            self._holder = None
            fresh = self._choose(self._placing)
            if self._running == 0 and (self._left == 0 or self._failure is not None):
                self._done.set()
        return fresh
