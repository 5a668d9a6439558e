"""What is under way, as torch.distributed knows it: a sum of the engine's, or a collective of gloo's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import Work

from herringbone_parallel.reduce.engine import Engine, Handle
from herringbone_spec.errors import ParallelError

# torch's word for "no limit of my own".
_NO_TIMEOUT = timedelta(0)
_POLL_SECONDS = 0.2
# The engine takes a rank for lost after 3.5 seconds without a sign of life.
_NEWS_SECONDS = 4.5


class SumWork(Work):
    """One submitted tensor: `handle` is the engine's, `land` brings the sum to where the caller looks for it.

    Its future ends with the tensor, in a list, as DistributedDataParallel wants it. What fails raises `ParallelError`
    from `wait`; a backward that waits on the future raises a RuntimeError with its text, as torch has it.
    """

    def __init__(self, handle: Handle, tensor: torch.Tensor, land: Callable[[], object] | None = None) -> None:
        super().__init__()
        self._handle = handle
        self._tensor = tensor
        self._land = land
        self._future: Any = None

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        self._handle.wait(timeout.total_seconds() or None)
        self._arrive()
        return True

    def get_future(self) -> Any:
        if self._future is None:
            arrived: Any = torch.futures.Future()
            # Of what is set from Python only a callback's exception is an error for torch's C++ too.
            self._future = arrived.then(self._outcome)
            # The callback keeps this object until the sum is there: torch < 2.7 keeps its C++ half alone.
            self._handle.add_callback(lambda _: arrived.set_result(None))
        return self._future

    def is_completed(self) -> bool:
        return self._handle.done()

    def is_success(self) -> bool:
        return self._handle.done()

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> list[torch.Tensor]:
        return [self._tensor]

    def _outcome(self, _: Any) -> list[torch.Tensor]:
        self.wait()
        return [self._tensor]

    def _arrive(self) -> None:
        land, self._land = self._land, None
        if land is not None:
            land()


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
