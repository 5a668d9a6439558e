"""What is under way, as torch.distributed knows it: a sum of the engine's, or a collective of gloo's."""

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

# Older ones keep only the C++ half of a work that their own C++ has asked for, and it would lose its methods.
KEEPS_WORKS = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 8)
# torch's word for "no limit of my own".
_NO_TIMEOUT = timedelta(0)
_POLL_SECONDS = 0.2
# The engine takes a rank for lost after 3.5 seconds without a sign of life.
_NEWS_SECONDS = 4.5


def work_of(future: Any) -> Any:
    """Return the work that a future stands for; what fails there is a RuntimeError of `wait` too, with its text.

    Before torch 2.8 it is a work of torch's own, as its reducer keeps the C++ half of one alone (under `model.join`)
    and would lose one of ours: that work's `wait` only waits, and its future or the next sum says what failed.
    """
    return FutureWork(future) if KEEPS_WORKS else _create_work_from_future(future)


class FutureWork(Work):
    """A sum under way; torch's own work of a future waits for it, and does not look whether it failed."""

    def __init__(self, future: Any) -> None:
        super().__init__()
        self._future = future

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        if timeout != _NO_TIMEOUT:
            arrived = threading.Event()
            self._future.add_done_callback(lambda _: arrived.set())
            if not arrived.wait(timeout.total_seconds()):
                raise RuntimeError(f"the sum has not arrived after {timeout.total_seconds():g} s")
        self._future.wait()
        return True

    def get_future(self) -> Any:
        return self._future

    def is_completed(self) -> bool:
        return bool(self._future.done())

    def synchronize(self) -> None:
        self.wait()


def sum_work(handle: Handle, tensor: torch.Tensor, land: Callable[[], object] | None = None) -> Any:
    """Return the work of a submitted tensor; `land` brings the sum to where the caller looks for it.

    Its future ends with the tensor, in a list, as DistributedDataParallel wants it.
    """

    def outcome(_: Any) -> list[torch.Tensor]:
        handle.wait()
        if land is not None:
            land()
        return [tensor]

    arrived: Any = torch.futures.Future()
    # Of what is set from Python only a callback's exception is an error for torch's C++ too.
    future = arrived.then(outcome)
    # The engine keeps the callback, and with it the tensor, until the sum is there.
    handle.add_callback(lambda _: arrived.set_result(None))
    return work_of(future)


class WatchedWork(Work):
    """A collective of gloo's under way; `wait` raises `ParallelError` once the engine knows that a rank is lost.

    gloo itself does not say who is, and waits for half an hour for one that is stopped.
    """

    def __init__(self, inner: Any, engine: Engine, abandon: Callable[[], None]) -> None:
        super().__init__()
        self._inner = inner
        self._engine = engine
        self._abandon = abandon

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        arrived = threading.Event()
        self._inner.get_future().add_done_callback(lambda _: arrived.set())
        while not arrived.wait(_POLL_SECONDS):
            self._raise_news()
        try:
            return bool(self._inner.wait(timeout))
        except RuntimeError as broken:
            until = time.monotonic() + _NEWS_SECONDS
            while time.monotonic() < until:
                self._raise_news(broken)
                time.sleep(_POLL_SECONDS)
            raise

    def get_future(self) -> Any:
        return self._inner.get_future()

    def is_completed(self) -> bool:
        return bool(self._inner.is_completed())

    def is_success(self) -> bool:
        return bool(self._inner.is_success())

    def exception(self) -> Any:
        return self._inner.exception()

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> Any:
        return self._inner.result()

    def _raise_news(self, cause: BaseException | None = None) -> None:
        if (failure := self._engine.failure) is not None:
            self._abandon()
            raise ParallelError(failure) from cause
