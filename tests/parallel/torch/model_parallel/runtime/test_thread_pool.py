"""The thread pool alone: parked threads, reuse of the thread that was idle last, and its end."""

from __future__ import annotations

import threading

from herringbone_parallel.torch.model_parallel.runtime.thread_pool import Parker, ThreadPool
from tests.waiting import wait_until


def test_an_unpark_before_the_park_is_not_lost() -> None:
    parker = Parker()
    parker.unpark()
    thread = threading.Thread(target=parker.park, daemon=True)
    thread.start()
    thread.join(timeout=20)
    assert not thread.is_alive()


def run_on(pool: ThreadPool) -> int:
    """Run a piece of work on the pool, wait until its thread is idle again, and return the thread's id."""
    ids: list[int] = []
    done = threading.Event()

    def work() -> None:
        ids.append(threading.get_native_id())
        done.set()

    pool.start(work, give_core=False)
    assert done.wait(20)
    # The worker becomes idle just after its work has ended.
    wait_until(lambda: pool._idle, 20)
    return ids[0]


def test_an_idle_thread_is_used_again_and_close_ends_it() -> None:
    pool = ThreadPool()
    before = threading.active_count()
    assert run_on(pool) == run_on(pool)
    pool.close()
    assert threading.active_count() == before
