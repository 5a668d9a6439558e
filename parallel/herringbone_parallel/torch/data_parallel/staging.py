"""CUDA tensors on their way through the engine, which sums in the host's memory. Not run yet: no CUDA device was there.

1  a stream of its own copies the bucket to pinned memory, once the stream that made it has got so far
2  a thread waits for the copies, in order, and submits them: the autograd thread goes on
3  the sum is copied back on the same stream; who waits for the future has its stream wait for that copy
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch._C._distributed_c10d import _create_work_from_future  # type: ignore[attr-defined]  # not in the stubs

from herringbone_parallel.reduce.engine import Engine, Handle


class Stager:
    """Submits CUDA tensors to the engine, in the order of `start`, from one thread that `close` ends."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="herringbone-staging", daemon=True)
        self._thread.start()

    def start(self, engine: Engine, tensor: torch.Tensor, operation: str) -> Any:
        """Start the engine's sum of a tensor on a device, in place."""
        work = _Staged(tensor)
        self._stream.wait_stream(torch.cuda.current_stream(tensor.device))
        with torch.cuda.stream(self._stream):
            staged = torch.empty(tensor.numel(), dtype=tensor.dtype, pin_memory=True)
            staged.copy_(tensor.detach().reshape(-1), non_blocking=True)
            # The allocator must not hand the bucket's memory out before the copies are through.
            tensor.record_stream(self._stream)
            copied = self._stream.record_event()

        def land(handle: Handle) -> None:
            try:
                handle.wait()
            except BaseException as failure:  # noqa: BLE001  whoever waits raises it
                work.fail(failure)
                return
            with torch.cuda.stream(self._stream):
                tensor.detach().copy_(staged.view(tensor.shape), non_blocking=True)
                work.succeed()

        def submit() -> None:
            try:
                copied.synchronize()
                name = str(staged.dtype).removeprefix("torch.")
                engine.all_reduce(staged.data_ptr(), staged.numel(), name, op=operation).add_callback(land)
            except BaseException as failure:  # noqa: BLE001  whoever waits raises it
                work.fail(failure)

        self._orders.put(submit)
        return _create_work_from_future(work.future)

    def close(self) -> None:
        self._orders.put(None)
        self._thread.join()

    def _serve(self) -> None:
        while (order := self._orders.get()) is not None:
            order()


class _Staged:
    """A sum of a CUDA tensor under way; `future` is what the others see of it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self._failure: BaseException | None = None
        # With the device, so that its completion stands for the work of a stream.
        self._arrived: Any = torch.futures.Future(devices=[tensor.device])
        self.future = self._arrived.then(self._outcome)

    def succeed(self) -> None:
        self._arrived.set_result([self._tensor])

    def fail(self, failure: BaseException) -> None:
        self._failure = failure
        self._arrived.set_result([self._tensor])

    def _outcome(self, arrived: Any) -> Any:
        if self._failure is not None:
            raise self._failure
        return arrived.value()
