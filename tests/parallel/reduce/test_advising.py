"""The timing of a step by its sums, and the usages in docstrings."""

from __future__ import annotations

import doctest

from herringbone_parallel.core.sums.simulate import Sum
from herringbone_parallel.reduce import advising
from herringbone_parallel.reduce.advising import Step, SumObserver
from herringbone_parallel.reduce.join import windows


def test_the_usages() -> None:
    assert doctest.testmod(advising) == (0, 2)
    assert doctest.testmod(windows) == (0, 3)


def test_the_third_step_is_seen_once_the_fourth_begins() -> None:
    seen: list[Step] = []
    times = iter([0.0, 1.0, 2.0, 10.0, 11.0, 12.0, 20.0, 21.0, 21.5, 23.0, 26.0])
    observer = SumObserver([8, 4], "float32", seen.append, clock=lambda: next(times))
    for _ in range(2):
        observer.started(0)
        observer.started(1)
        observer.ended()
    observer.started(0)
    observer.started(1)
    observer.ended()
    observer.ended()
    assert not seen
    observer.started(0)
    # 20 to 26, of which 21 to 23 were a wait: 4 s, two thirds of them a backward that ended at 21.
    assert seen == [Step([Sum(8, 8 / 3 - 1), Sum(4, 8 / 3)], 4 - 8 / 3, 8 / 3, "float32")]
    observer.started(1)
    observer.ended()
    observer.started(0)
    assert len(seen) == 1


def test_a_step_that_raised_in_its_middle_is_not_taken_for_one() -> None:
    seen: list[Step] = []
    observer = SumObserver([8, 4], "float32", seen.append, clock=lambda: 0.0)
    for _ in range(5):
        observer.started(0)
    assert not seen
