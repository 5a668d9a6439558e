"""A sum under way, as torch.distributed knows it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import Work

from herringbone_parallel.reduce.engine import Handle

# torch's word for "no limit of my own".
_NO_TIMEOUT = timedelta(0)


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
