import os
import sys
import threading

import pytest

from herringbone_parallel.core.pipeline.schedule import make_schedule
from herringbone_parallel.torch.model_parallel.runtime.cpu_affinity import Placing, placing_of
from herringbone_parallel.torch.model_parallel.runtime.run_token import Baton, Crew

ALL = frozenset((0, 1, 2))


def run(count, placing):
    """Run microbatches that each hand the baton on once; return, of each, the cores it had when it ran again."""
    crew = Crew()
    seen = {}

    def body(index):
        baton.enter_backward(index)
        seen[index] = frozenset(os.sched_getaffinity(0)) if sys.platform == "linux" else None

    baton = Baton(make_schedule("simple", active=count), crew, count, body, keep=lambda: lambda: None, placing=placing)
    baton.run()
    crew.dismiss()
    return seen


def test_the_next_holder_is_called_to_the_core_of_the_last_and_freed_at_once():
    calls, lock = [], threading.Lock()

    def allow(thread, cores):
        with lock:
            calls.append((thread, cores))

    run(3, Placing(current=lambda: 1, allowed=lambda: ALL, allow=allow))
    called = [thread for thread, cores in calls if cores == {1}]
    freed = [thread for thread, cores in calls if cores == ALL]
    # Two fresh ones on threads of their own, and three that go on as backwards; the first of all is nobody's heir.
    assert len(called) == 5
    assert len(set(called)) == 3
    assert 0 not in called
    # Each who slept frees itself, the one woken to begin the backwards by its own hand-over among them.
    assert freed == [0] * 5
    for position, (thread, cores) in enumerate(calls):
        assert cores != {1} or calls[position + 1] == (0, ALL), thread


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux places threads")
def test_a_thread_has_all_its_cores_again_when_it_runs():
    placing = placing_of(ranks_here=1, threads=10_000)
    assert placing is not None
    before = frozenset(os.sched_getaffinity(0))
    assert run(4, placing) == dict.fromkeys(range(4), before)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux places threads")
def test_what_the_system_forbids_is_left_alone():
    placing = placing_of(ranks_here=1, threads=10_000)
    assert placing is not None
    placing.allow(2**22 + 1, frozenset((0,)))  # beyond the highest number a thread can have
    placing.allow(0, frozenset((100_000,)))
    assert placing.allowed() == frozenset(os.sched_getaffinity(0))


def test_where_cores_are_left_over_the_kernel_finds_one_by_itself():
    assert placing_of(ranks_here=1, threads=0) is None
