"""The run token: one microbatch runs at a time on a rank, and the schedule says which one is next.

Each microbatch has a thread, because torch's grad mode and autocast are thread-local. The thread that holds the token
runs. A thread that must wait for a message parks and passes the token to the ready microbatch that the schedule names.
If no microbatch is ready, the token stays free until a message arrives.

    [1] a thread parks, or ends its microbatch           `wait`, `await_ticket`, `enter_backward`, `_run_one`
    [2] the token is free: the schedule is asked         `_choose`
    [3] the chosen microbatch is unparked, or started    `Parker.unpark`, `ThreadPool.start`
    [4] the woken thread goes on where [1] left it       `_parked`

Three kinds of threads come here: those of the microbatches, the transport's receiving threads (`deliver`, `fail`), and
the thread that called the step (`run`, `wait_outside`, `blocked_state`). `_lock` orders them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, NamedTuple

from herringbone_parallel.core.pipeline.schedule import Ready, Schedule
from herringbone_parallel.torch.model_parallel.runtime.phases import Phase
from herringbone_parallel.torch.model_parallel.runtime.thread_pool import Parker, ThreadPool

# The thread that waits for a step calls `poll` this often.
_POLL_SECONDS = 0.5

# Module names, because Python 3.10 looks up a member of an enum several times slower.
FRESH, FORWARD, BACKWARD, WEIGHT, ENDED = Phase


class Ticket(NamedTuple):
    """An action that microbatches take in the order of their numbers: the `visit`-th call of one module, say."""

    phase: int
    action: Hashable
    visit: int


class Awaited(NamedTuple):
    """A message that has not arrived. `microbatch` is None when the thread that called the step waits for it."""

    microbatch: int | None
    key: Any


def _turn(phase: Phase) -> Ticket:
    """Return a ticket that no microbatch passes: it becomes valid when the previous one has left the phase."""
    return Ticket(phase, "all of it", 1)


class BlockedState(NamedTuple):
    """The phases of all microbatches and the messages they wait for. It changes whenever one of them has moved."""

    phases: tuple[int, ...]
    awaited: tuple[Awaited, ...]


class StepAbandonedError(BaseException):
    """Unwinds the other microbatches after one has failed; users never see it."""


class _Runner:
    """The scheduling state of one microbatch. `RunToken._lock` guards every member except `parker`."""

    __slots__ = ("awaited", "index", "parked", "parker", "passed", "phase")

    def __init__(self, index: int) -> None:
        self.index = index
        self.phase: Phase = FRESH
        # The key of a message, or a `Ticket`; None when the microbatch can go on at any time.
        self.awaited: Any = None
        # The actions of this microbatch that the next microbatch may now take.
        self.passed: set[Ticket] = set()
        self.parker = Parker()
        # True from the decision to park until `unpark`. So each `park` is woken once, although both the choice of the
        # next holder and a failure wake threads.
        self.parked = False

    def unpark(self, pool: ThreadPool | None = None) -> None:
        """Wake the microbatch if it is parked; with `pool`, by its hand-over of the core. Requires `_lock`."""
        if self.parked:
            self.parked = False
            self.parker.unpark(None if pool is None else pool.hand_over)


class RunToken:
    """Runs `body(index)` for each microbatch, one at a time, in the schedule's order.

        token = RunToken(schedule, pool, count=4, body=run_microbatch, save_state=randomness.save_generators)
        token.run()

    Inside a body, `wait` returns a message and `enter_backward` changes the phase. `await_ticket` before an action and
    `pass_ticket` after it keep that action in the order of the microbatches: sums and running statistics are then the
    same to the last bit whatever the timing. `deliver(key, content)` may be called from any thread.

    `save_state` returns a function that restores the thread's state, such as random numbers, after it was parked.
    With `in_order` one microbatch's forward, and then its backward, runs to its end before the next one's begins.
    `record(phase, index, start, end)` is called after each stretch in which a microbatch held the token, with seconds
    of `time.monotonic`.
    """

    def __init__(
        self,
        schedule: Schedule,
        pool: ThreadPool,
        count: int,
        body: Callable[[int], None],
        save_state: Callable[[], Callable[[], None]],
        record: Callable[[Phase, int, float, float], None] | None = None,
        *,
        in_order: bool = False,
    ) -> None:
        self._schedule = schedule
        self._pool = pool
        self._body = body
        self._save_state = save_state
        self._record = record
        self._in_order = in_order
        # Phase and start of the holder's stretch. Only the holder reads and writes it, so it needs no lock.
        self._stretch: tuple[Phase, float] = (FRESH, 0.0)
        self._runners = [_Runner(index) for index in range(count)]
        # Guards all members below, and the members of the runners. It is never held while user code runs.
        self._lock = threading.Lock()
        # For `wait_outside`, the only waiter that has no runner. It shares `_lock`.
        self._arrival = threading.Condition(self._lock)
        # By key, in the order of arrival: each backward through a value sends its gradient under the same key.
        self._messages: dict[Any, list[Any]] = {}
        # None while the token is free.
        self._holder: _Runner | None = None
        # Written once. Read without the lock by a thread that has just woken: the lock that woke it orders the two.
        self._failure: BaseException | None = None
        self._not_ended = count
        # Threads inside `_run_one`. After a failure the step is over when all of them have unwound.
        self._running = 0
        # Messages of a faster peer may arrive before `run`, and must not start a microbatch.
        self._started = False
        self._awaited_outside: Any = None
        self._done = threading.Event()
        self.peak_live = 0

    def run(self, poll: Callable[[], None] | None = None) -> None:
        """Run all microbatches, and raise the first exception that one of them raised.

        `poll` is called every half second in the meantime, in the calling thread.
        """
        with self._lock:
            self._started = True
            self._pass_on()
        while not self._done.wait(None if poll is None else _POLL_SECONDS):
            if poll is not None:
                poll()
        # The body's closure holds this token: that cycle would keep the step's tensors until the next garbage
        # collection.
        del self._body
        if self._failure is not None:
            raise self._failure

    def deliver(self, key: Any, content: Any) -> None:
        """Take in a message, and pass the token to its microbatch if the token is free."""
        with self._lock:
            self._messages.setdefault(key, []).append(content)
            self._arrival.notify_all()
            self._pass_on()

    def fail(self, failure: BaseException) -> None:
        """End the step with this failure; `run` raises it when every microbatch under way has unwound."""
        with self._lock:
            if self._failure is not None:
                return
            self._failure = failure
            self._arrival.notify_all()
            # All at once, without the token: they only unwind, and raise `StepAbandonedError` as soon as they wake.
            for runner in self._runners:
                runner.unpark()
            if self._running == 0:
                self._done.set()

    def wait(self, index: int, key: Any) -> Any:
        """Return the message with this key; other microbatches run until it arrives."""
        runner = self._runners[index]
        with self._lock:
            if key in self._messages:
                return self._take_message(key)
            runner.awaited = key
            restore = self._prepare_to_park(runner)
        self._parked(restore, runner)
        with self._lock:
            return self._take_message(key)

    def wait_outside(self, key: Any, poll: Callable[[], None]) -> Any:
        """Return the message with this key to the thread that calls `run`, before its microbatches or after them."""
        while True:
            with self._arrival:
                self._awaited_outside = key
                if self._arrival.wait_for(lambda: key in self._messages or self._failure is not None, _POLL_SECONDS):
                    self._awaited_outside = None
                    if self._failure is not None:
                        raise self._failure
                    return self._take_message(key)
            # Without the lock: `poll` asks for `blocked_state`, and may call `fail`.
            poll()

    def blocked_state(self) -> BlockedState | None:
        """Return what this rank waits for, or None while a microbatch runs or after a failure."""
        with self._lock:
            if self._holder is not None or self._failure is not None:
                return None
            awaited = [Awaited(runner.index, runner.awaited) for runner in self._runners if self._lacks(runner.awaited)]
            if self._lacks(self._awaited_outside):
                awaited.append(Awaited(None, self._awaited_outside))
            return BlockedState(tuple(runner.phase for runner in self._runners), tuple(awaited))

    def await_ticket(self, index: int, ticket: Ticket) -> None:
        """Return once the previous microbatch has passed this ticket, or has left the ticket's phase."""
        runner = self._runners[index]
        with self._lock:
            if self._has_ticket(runner, ticket):
                return
            runner.awaited = ticket
            restore = self._prepare_to_park(runner)
        self._parked(restore, runner)

    def pass_ticket(self, index: int, ticket: Ticket) -> None:
        """Let the next microbatch take this action."""
        # It wakes nobody: the caller holds the token, and `_choose` looks at the tickets when the token is free again.
        with self._lock:
            self._runners[index].passed.add(ticket)

    def enter_backward(self, index: int) -> None:
        """Go on with the backward when the schedule says so."""
        runner = self._runners[index]
        with self._lock:
            runner.phase = BACKWARD
            if self._in_order:
                runner.awaited = _turn(BACKWARD)
            restore = self._prepare_to_park(runner)
        self._parked(restore, runner)

    def enter_weight(self, index: int) -> None:
        """Go on with the gradients of parameters when the schedule says so and the previous microbatch has ended."""
        runner = self._runners[index]
        with self._lock:
            runner.phase = WEIGHT
            # The sums of the previous microbatch have then been added before those of this one.
            runner.awaited = _turn(WEIGHT)
            restore = self._prepare_to_park(runner)
        self._parked(restore, runner)

    def _lacks(self, awaited: Any) -> bool:
        """Say whether this is a message that has not arrived. Requires `_lock`."""
        return awaited is not None and not isinstance(awaited, Ticket) and awaited not in self._messages

    def _take_message(self, key: Any) -> Any:
        """Remove and return the oldest message with this key. Requires `_lock`."""
        contents = self._messages[key]
        first = contents.pop(0)
        if not contents:
            del self._messages[key]
        return first

    def _prepare_to_park(self, runner: _Runner) -> Callable[[], None]:
        """Free the token and pass it on; return the function that restores the thread's state. Requires `_lock`.

        The caller leaves `_lock` and calls `_parked`. It may be chosen again at once: then `_parked` does not sleep.
        """
        # Here and not only in `_parked`: after `fail` has woken the parked threads, nobody would wake this one.
        if self._failure is not None:
            raise StepAbandonedError
        runner.parked = True
        restore = self._save_state()
        if self._record is not None:
            self._record_stretch(self._record, runner)
        self._holder = None
        self._pass_on(leaving=True)
        return restore

    def _parked(self, restore: Callable[[], None], runner: _Runner) -> None:
        """Sleep until this microbatch is the holder again. Must be called without `_lock`."""
        runner.parker.park()
        if self._failure is not None:
            # Without `restore`, because all microbatches unwind at once.
            raise StepAbandonedError
        restore()
        if self._record is not None:
            self._stretch = (runner.phase, time.monotonic())

    def _record_stretch(self, record: Callable[[Phase, int, float, float], None], runner: _Runner) -> None:
        phase, start = self._stretch
        record(phase, runner.index, start, time.monotonic())

    def _pass_on(self, *, leaving: bool = False) -> None:
        """Give a free token to the next microbatch. Set `leaving` when the caller sleeps next. Requires `_lock`."""
        fresh = self._choose(leaving=leaving)
        if fresh is not None:
            self._pool.start(partial(self._run_from, fresh), give_core=leaving)

    def _choose(self, *, leaving: bool) -> _Runner | None:
        """Make the schedule's choice the holder. Requires `_lock`.

        Unparks the microbatch if it has a thread; returns it if the caller must start one. Set `leaving` when the
        calling thread is about to sleep, so that its core may go to the woken thread.
        """
        if not self._started or self._holder is not None or self._failure is not None:
            return None
        choice = self._schedule(self._ready())
        if choice is None:
            return None
        runner = self._runners[choice]
        self._holder = runner
        runner.awaited = None
        if runner.phase != FRESH:
            runner.unpark(self._pool if leaving else None)
            return None
        runner.phase = FORWARD
        self._running += 1
        self.peak_live = max(self.peak_live, self._live())
        return runner

    def _ready(self) -> Ready:
        """Return the microbatches that can run, for the schedule. Requires `_lock`."""
        # By phase; an ended microbatch is in none of the lists.
        ready: tuple[list[int], ...] = ([], [], [], [])
        forwards_left = 0
        for runner in self._runners:
            phase = runner.phase
            forwards_left += phase <= FORWARD
            if phase != ENDED and self._can_run(runner):
                ready[phase].append(runner.index)
        return Ready(
            forward=tuple(ready[FORWARD]),
            backward=tuple(ready[BACKWARD]),
            fresh=tuple(ready[FRESH]),
            live=self._live(),
            forwards_left=forwards_left,
            weight=tuple(ready[WEIGHT]),
        )

    def _can_run(self, runner: _Runner) -> bool:
        """Say whether the message or ticket that the microbatch waits for is here. Requires `_lock`."""
        awaited = runner.awaited
        if isinstance(awaited, Ticket):
            return self._has_ticket(runner, awaited)
        return awaited is None or awaited in self._messages

    def _has_ticket(self, runner: _Runner, ticket: Ticket) -> bool:
        """Say whether the previous microbatch has passed the ticket or left its phase. Requires `_lock`."""
        if runner.index == 0:
            return True
        previous = self._runners[runner.index - 1]
        # A microbatch that took another branch never passes the ticket; the end of its phase then counts.
        return previous.phase > ticket.phase or ticket in previous.passed

    def _live(self) -> int:
        """Return how many microbatches have begun and not ended. Requires `_lock`."""
        return sum(FRESH < runner.phase < ENDED for runner in self._runners)

    def _run_from(self, runner: _Runner | None) -> None:
        """Run a microbatch, and then, on the same thread, each fresh one that is next."""
        while runner is not None:
            runner = self._run_one(runner)

    def _run_one(self, runner: _Runner) -> _Runner | None:
        """Run a microbatch to its end; return the next one if it is fresh and so needs a thread."""
        runner.parker.thread = threading.get_native_id()
        if self._record is not None:
            self._stretch = (runner.phase, time.monotonic())
        try:
            if self._in_order:
                self.await_ticket(runner.index, _turn(FORWARD))
            self._body(runner.index)
        except StepAbandonedError:
            pass
        except BaseException as failure:  # noqa: BLE001  `run` raises it in the thread that called the step
            self.fail(failure)
        with self._lock:
            # After a failure the threads unwind together, and only one of them is the holder.
            if self._record is not None and self._holder is runner:
                self._record_stretch(self._record, runner)
            runner.phase = ENDED
            self._running -= 1
            self._not_ended -= 1
            self._holder = None
            fresh = self._choose(leaving=True)
            if self._running == 0 and (self._not_ended == 0 or self._failure is not None):
                self._done.set()
        return fresh
