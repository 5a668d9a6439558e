"""Every way to wait for a failed sum raises its error."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.data_parallel.work import KEEPS_WORKS, sum_work

needs_works = pytest.mark.skipif(not KEEPS_WORKS, reason="this torch loses works that Python defines")


class Sum:
    """A handle of the engine whose sum ends when the test calls `end`."""

    def __init__(self, failure: str | None = None) -> None:
        self.failure, self.ended = failure, []

    def add_callback(self, callback) -> None:
        self.ended.append(callback)

    def end(self) -> None:
        for callback in self.ended:
            callback(self)

    def wait(self) -> None:
        if self.failure:
            raise ParallelError(self.failure)


@needs_works
@pytest.mark.parametrize("how", ["wait", "synchronize", "future"])
def test_a_failed_sum_raises(how):
    """Regression: torch's own work returned True from `wait`, and all_reduce left the caller's own numbers in place."""
    handle = Sum("rank 1 on b is gone")
    work = sum_work(handle, torch.zeros(3))
    handle.end()
    with pytest.raises(RuntimeError, match="rank 1 on b is gone"):
        work.get_future().wait() if how == "future" else getattr(work, how)()


@needs_works
def test_a_wait_can_have_a_limit():
    handle, tensor = Sum(), torch.zeros(3)
    work = sum_work(handle, tensor)
    assert not work.is_completed()
    with pytest.raises(RuntimeError, match="the sum has not arrived after"):
        work.wait(timedelta(seconds=0.01))
    handle.end()
    assert work.wait(timedelta(seconds=10))
    assert work.is_completed()
    assert work.get_future().wait() == [tensor]
