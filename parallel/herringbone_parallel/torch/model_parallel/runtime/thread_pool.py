"""Threads for microbatches: a pool that keeps them from step to step, and the lock that one thread sleeps on."""

from __future__ import annotations

import threading
from collections.abc import Callable

from herringbone_parallel.torch.model_parallel.runtime.cpu_affinity import CoreHandOver, Cores


class Parker:
    """Puts one thread to sleep until another thread wakes it.

        parker.park()                       # in the thread that sleeps
        parker.unpark(pool.hand_over)       # in the thread that wakes it, exactly once for each `park`

    `unpark` may come first; `park` then returns at once. `thread` is the kernel's id of the thread that parks, which a
    hand-over of the core needs.
    """

    __slots__ = ("_cores", "_hand_over", "_lock", "thread")

    def __init__(self) -> None:
        # A taken lock: the second `acquire` sleeps until another thread releases it. A semaphore costs more, because
        # Python builds it from a condition variable.
        self._lock = threading.Lock()
        self._lock.acquire()
        self.thread = 0
        # Both belong to the waking thread until it releases `_lock`, and to the woken thread from then on.
        self._hand_over: CoreHandOver | None = None
        self._cores: Cores = frozenset()

    def park(self) -> None:
        """Sleep until `unpark`."""
        self._lock.acquire()
        if self._hand_over is not None:
            # First of all, before any work: a bound thread could not move away from a core that gets busy.
            hand_over, self._hand_over = self._hand_over, None
            hand_over.take_back(self._cores)

    def unpark(self, hand_over: CoreHandOver | None = None) -> None:
        """Wake the thread; with `hand_over`, on the core of the caller, which is about to sleep."""
        if hand_over is not None:
            # Before the release: the kernel chooses the core at the moment of waking.
            self._cores = hand_over.give(self.thread)
            self._hand_over = hand_over
        self._lock.release()


class ThreadPool:
    """Threads that run one microbatch after another, kept from step to step.

        pool = ThreadPool()
        pool.start(run_microbatch, give_core=False)
        pool.close()

    The thread that became idle last is taken first: the memory that its microbatches have freed is warm, while a new
    thread would get fresh pages from the system. There are never more threads than
    microbatches were live at once. `hand_over` is the optional way to wake a thread on a chosen core; the thread that
    runs the steps sets it between steps.
    """

    def __init__(self) -> None:
        # Only the holder of the run token's lock pops, so `start` never races with itself. Workers append without that
        # lock, which is safe because a list's `append` and `pop` are atomic.
        self._idle: list[_Worker] = []
        self.hand_over: CoreHandOver | None = None

    def start(self, work: Callable[[], None], *, give_core: bool) -> None:
        """Run `work` on a thread. Set `give_core` when the calling thread is about to sleep."""
        worker = self._idle.pop() if self._idle else _Worker(self._idle)
        worker.work = work
        worker.parker.unpark(self.hand_over if give_core else None)

    def close(self) -> None:
        """End the idle threads, and wait until they have ended."""
        while self._idle:
            worker = self._idle.pop()
            worker.work = None
            worker.parker.unpark()
            worker.thread.join()


class _Worker:
    """A thread of the pool. `work` belongs to the starter until `unpark`, and to the thread until it is idle again."""

    def __init__(self, idle: list[_Worker]) -> None:
        self._idle = idle
        self.work: Callable[[], None] | None = None
        self.parker = Parker()
        # A daemon: a script that ends in the middle of a failed step must not wait for a microbatch that is parked.
        self.thread = threading.Thread(target=self._run, name="smp-microbatch", daemon=True)
        self.thread.start()
        # `start` has waited until the thread runs, so its id is known.
        assert self.thread.native_id is not None
        self.parker.thread = self.thread.native_id

    def _run(self) -> None:
        while True:
            self.parker.park()
            if self.work is None:
                return
            self.work()
            # Dropped before the thread becomes idle: the work's closure holds the step's tensors.
            self.work = None
            self._idle.append(self)
