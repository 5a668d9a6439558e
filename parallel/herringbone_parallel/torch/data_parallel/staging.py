"""Tensors of a device on their way through the engine, which sums in the host's memory.

1  a stream of its own sums the bucket over the host's ranks, where there are several, and copies this rank's slice
   of it to the host's memory, once the stream that made the bucket has got so far
2  a thread waits for the copies, in order, and submits them: the autograd thread goes on
3  another waits for the sums, in order, and has them copied back and gathered on a second stream; who waits for the
   future has its stream wait for that
"""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import dataclass
from typing import Any

import torch

from herringbone_contract.errors import ParallelError
from herringbone_parallel.reduce.engine import Engine, Handle
from herringbone_parallel.torch.data_parallel.device import Device, Wait
from herringbone_parallel.torch.data_parallel.inside import Inside
from herringbone_parallel.torch.data_parallel.work import work_of

# By then the engine of all ranks has noticed what that of a lane has.
_NEWS_SECONDS = 1.0


class Stager:
    """Sums tensors of a device, in the order of `start`, with two threads that `close` ends.

    `engine` is that of all ranks. With `inside`, `lane` is the engine that sums the slices of equal ranks of all hosts;
    without, each rank's whole bucket goes through `engine`, which sums inside the host too.
    """

    def __init__(
        self, engine: Engine, device: Device, inside: Inside | None = None, lane: Engine | None = None
    ) -> None:
        assert (inside is None) == (lane is None)
        self._engine, self._device, self._inside, self._lane = engine, device, inside, lane
        self._staged: queue.SimpleQueue[_Order | None] = queue.SimpleQueue()
        self._submitted: queue.SimpleQueue[_Order | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=work, name=f"herringbone-{name}", daemon=True)
            for name, work in (("staging", self._submit_all), ("landing", self._land_all))
        ]
        for thread in self._threads:
            thread.start()

    def start(self, tensor: torch.Tensor, operation: str) -> Any:
        """Start the sum of a tensor on the device, in place; return torch's work of it."""
        work = _Staged(tensor, self._device.future(tensor))
        with self._device.leaving(tensor):
            part = self._inside.scatter(tensor) if self._inside else tensor.detach().reshape(-1)
            if self._inside and operation == "average":
                part.div_(self._inside.size)
            staged, copied = self._device.copy_out(part, self._raise_lost)
        self._staged.put(_Order(work, tensor, part, staged, copied, operation))
        return work_of(work.future)

    def close(self) -> None:
        """End the threads, once what was started is done; the engine of all ranks stays its caller's."""
        self._staged.put(None)
        for thread in self._threads:
            thread.join()
        if self._lane is not None:
            self._lane.close()
        if self._inside is not None:
            self._inside.shutdown()

    def _submit_all(self) -> None:
        engine = self._lane or self._engine
        while (order := self._staged.get()) is not None:
            try:
                order.copied()
                staged = order.staged
                name = str(staged.dtype).removeprefix("torch.")
                order.handle = engine.all_reduce(staged.data_ptr(), staged.numel(), name, op=order.operation)
            except BaseException as failure:  # noqa: BLE001  whoever waits raises it
                order.failure = failure
            self._submitted.put(order)
        self._submitted.put(None)

    def _land_all(self) -> None:
        while (order := self._submitted.get()) is not None:
            try:
                self._land(order)
            except BaseException as failure:  # noqa: BLE001  whoever waits raises it
                order.work.fail(self._reason(failure))

    def _land(self, order: _Order) -> None:
        if order.failure is not None:
            raise order.failure
        assert order.handle is not None
        order.handle.wait()
        with self._device.landing(order.tensor, order.part):
            if self._inside is None:
                order.tensor.detach().copy_(order.staged.view(order.tensor.shape), non_blocking=True)
            else:
                order.part.copy_(order.staged, non_blocking=True)
                self._inside.gather(order.part, order.tensor)
            order.work.succeed()

    def _reason(self, failure: BaseException) -> BaseException:
        """Return why a sum failed, in the words of the engine of all ranks: it calls them by their numbers."""
        until = time.monotonic() + (_NEWS_SECONDS if isinstance(failure, ParallelError) and self._lane else 0.0)
        while self._engine.failure is None and time.monotonic() < until:
            time.sleep(0.01)
        return failure if self._engine.failure is None else ParallelError(self._engine.failure)

    def _raise_lost(self) -> None:
        if self._engine.failure is not None:
            raise ParallelError(self._engine.failure)


@dataclass
class _Order:
    """A tensor under way: this rank's part of it on the device, and the same in the host's memory."""

    work: _Staged
    tensor: torch.Tensor
    part: torch.Tensor
    staged: torch.Tensor
    copied: Wait
    operation: str
    handle: Handle | None = None
    failure: BaseException | None = None


class _Staged:
    """A sum under way; `future` is what the others see of it."""

    def __init__(self, tensor: torch.Tensor, arrived: Any) -> None:
        self._tensor, self._arrived = tensor, arrived
        self._failure: BaseException | None = None
        self.future = arrived.then(self._outcome)

    def succeed(self) -> None:
        self._arrived.set_result([self._tensor])

    def fail(self, failure: BaseException) -> None:
        self._failure = failure
        self._arrived.set_result([self._tensor])

    def _outcome(self, arrived: Any) -> Any:
        if self._failure is not None:
            raise self._failure
        return arrived.value()
