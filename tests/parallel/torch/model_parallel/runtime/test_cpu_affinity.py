"""The hand-over of a core: which threads are bound, and that each takes its cores back."""

import os
import sys
import threading

import pytest

from herringbone_parallel.core.pipeline.schedule import make_schedule
from herringbone_parallel.torch.model_parallel.runtime.cpu_affinity import CoreHandOver, core_hand_over
from herringbone_parallel.torch.model_parallel.runtime.run_token import RunToken
from herringbone_parallel.torch.model_parallel.runtime.thread_pool import ThreadPool

ALL = frozenset((0, 1, 2))


def run(count, hand_over):
    """Run microbatches that each hand the token on once; return the cores that each had when it ran again."""
    pool = ThreadPool()
    pool.hand_over = hand_over
    cores = {}

    def body(index):
        token.enter_backward(index)
        cores[index] = frozenset(os.sched_getaffinity(0)) if sys.platform == "linux" else None

    token = RunToken(make_schedule("simple", active=count), pool, count, body, save_state=lambda: lambda: None)
    token.run()
    pool.close()
    return cores


def test_the_next_holder_is_bound_to_the_core_of_the_last_and_takes_its_cores_back_at_once():
    calls, lock = [], threading.Lock()

    def set_cores(thread, cores):
        with lock:
            calls.append((thread, cores))

    run(3, CoreHandOver(current_core=lambda: 1, cores_of=lambda thread: ALL, set_cores=set_cores))
    bound = [thread for thread, cores in calls if cores == {1}]
    freed = [thread for thread, cores in calls if cores == ALL]
    # Two fresh microbatches on threads of their own, and three that continue as backwards. Nobody hands a core to the
    # first one.
    assert len(bound) == 5
    assert len(set(bound)) == 3
    assert 0 not in bound
    # Each of them takes its cores back, also the one that its own hand-over woke to begin the backwards.
    assert freed == [0] * 5
    for position, (thread, cores) in enumerate(calls):
        assert cores != {1} or calls[position + 1] == (0, ALL), thread


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux binds threads")
def test_a_thread_has_all_its_cores_again_when_it_runs():
    hand_over = core_hand_over(local_ranks=1, threads=10_000, device="cpu")
    assert hand_over is not None
    before = frozenset(os.sched_getaffinity(0))
    assert run(4, hand_over) == dict.fromkeys(range(4), before)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux binds threads")
def test_a_call_that_the_system_forbids_changes_nothing():
    hand_over = core_hand_over(local_ranks=1, threads=10_000, device="cpu")
    assert hand_over is not None
    before = hand_over.cores_of(0)
    hand_over.set_cores(2**22 + 1, frozenset((0,)))  # beyond the highest id that a thread can have
    hand_over.set_cores(0, frozenset((100_000,)))
    assert hand_over.cores_of(0) == before == frozenset(os.sched_getaffinity(0))


def test_there_is_no_hand_over_where_cores_are_idle():
    assert core_hand_over(local_ranks=1, threads=0, device="cpu") is None


def test_there_is_no_hand_over_on_a_gpu_where_it_was_never_measured():
    assert core_hand_over(local_ranks=1, threads=10_000, device="cuda") is None
