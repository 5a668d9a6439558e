"""torch.distributed's work objects for a sum of the engine, and for a collective of gloo."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import (  # type: ignore[attr-defined]  # not in the stubs
    Work,
    _create_work_from_future,
)

from herringbone_contract.errors import ParallelError
from herringbone_parallel.reduce.engine import Engine, Handle
from herringbone_parallel.torch.data_parallel.uncompiled import uncompiled

# An older torch keeps only the C++ half of a work object whose C++ code asked for it. The Python half, with the methods
# that are overridden here, would then be collected.
KEEPS_WORKS = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 8)
# torch's value for "no timeout of this call's own".
_NO_TIMEOUT = timedelta(0)
_POLL_SECONDS = 0.2
# The engine reports a rank as lost after 3.5 seconds without a sign of life.
_REPORT_SECONDS = 4.5


def work_of(future: Any) -> Any:
    """Return a work object for a future. An error of the future is a RuntimeError of `wait`, with its text.

    Before torch 2.8, the result is one of torch's own works, because torch's reducer would lose one of ours (under
    `model.join`). That work's `wait` reports no error: its future, or the next sum, does.
    """
    return FutureWork(future) if KEEPS_WORKS else _create_work_from_future(future)


class FutureWork(Work):
    """A sum in progress. torch's own work for a future waits for it, but does not raise its error."""

    def __init__(self, future: Any) -> None:
        super().__init__()
        self._future = future

    @uncompiled
    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Wait for the sum; raises its error, or RuntimeError after `timeout`."""
        if timeout != _NO_TIMEOUT:
            # torch's futures have no wait with a timeout.
            arrived = threading.Event()
            self._future.add_done_callback(lambda _: arrived.set())
            if not arrived.wait(timeout.total_seconds()):
                raise RuntimeError(f"the sum has not arrived after {timeout.total_seconds():g} s")
        self._future.wait()
        return True

    def get_future(self) -> Any:
        """Return the future."""
        return self._future

    def is_completed(self) -> bool:
        """Return True if the sum has ended, well or not."""
        return bool(self._future.done())

    def result(self) -> Any:
        """Return the list with the tensor. `model.join` reads the number of ranks that still train from it."""
        return self._future.value()

    def synchronize(self) -> None:
        """Wait for the sum; raises its error."""
        self.wait()


def sum_work(handle: Handle, tensor: torch.Tensor, land: Callable[[], object] | None = None) -> Any:
    """Return the work object of a submitted tensor; `land` copies the sum to the place where the caller expects it.

    The future's value is a list with the tensor, as DistributedDataParallel requires.
    """

    def outcome(_: Any) -> list[torch.Tensor]:
        handle.wait()
        if land is not None:
            land()
        return [tensor]

    arrived: Any = torch.futures.Future()
    # An exception that Python sets on a future is a mere value for torch's C++ code. One that a callback raises is an
    # error there, too, so the sum's error is raised in a callback.
    future = arrived.then(outcome)
    # The engine keeps the callback, and with it the tensor, until the sum is there.
    handle.add_callback(lambda _: arrived.set_result(None))
    return work_of(future)


class WatchedWork(Work):
    """A collective of gloo in progress; `wait` raises `ParallelError` when the engine reports a lost rank.

    gloo itself does not name the rank, and waits half an hour for one that is stopped.
    """

    def __init__(self, inner: Any, engine: Engine, abandon: Callable[[], None]) -> None:
        super().__init__()
        self._inner = inner
        self._engine = engine
        self._abandon = abandon

    @uncompiled
    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Wait for the collective."""
        arrived = threading.Event()
        self._inner.get_future().add_done_callback(lambda _: arrived.set())
        while not arrived.wait(_POLL_SECONDS):
            self._raise_failure()
        try:
            return bool(self._inner.wait(timeout))
        except RuntimeError as broken:
            # gloo notices a broken connection before the engine does. Wait for the engine, which can name the rank.
            until = time.monotonic() + _REPORT_SECONDS
            while time.monotonic() < until:
                self._raise_failure(broken)
                time.sleep(_POLL_SECONDS)
            raise

    def get_future(self) -> Any:
        """Return gloo's future."""
        return self._inner.get_future()

    def is_completed(self) -> bool:
        """Return True if the collective has ended, well or not."""
        return bool(self._inner.is_completed())

    def is_success(self) -> bool:
        """Return True if the collective has ended well."""
        return bool(self._inner.is_success())

    def exception(self) -> Any:
        """Return gloo's exception."""
        return self._inner.exception()

    def synchronize(self) -> None:
        """Wait for the collective."""
        self.wait()

    def result(self) -> Any:
        """Return gloo's result."""
        return self._inner.result()

    def _raise_failure(self, cause: BaseException | None = None) -> None:
        if (failure := self._engine.failure) is not None:
            self._abandon()
            raise ParallelError(failure) from cause
