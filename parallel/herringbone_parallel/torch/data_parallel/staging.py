"""Sums tensors of a device through the engine, which sums in the host's memory.

[1] start    the caller's thread queues work on a stream: sum the bucket over the host's ranks, if there are several,
             and copy this rank's slice to the host's memory. The stream waits for the stream that computes the bucket
[2] submit   a thread waits for the copies, in order, and submits them to the engine; the autograd thread continues
[3] land     another thread waits for the sums, in order, and queues the copies back and the gathers on a second stream.
             A caller that waits for the future makes its own stream wait for that one
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
from herringbone_parallel.torch.data_parallel.intra_host import IntraHost
from herringbone_parallel.torch.data_parallel.work import work_of

# Within this time the job's engine, too, notices a loss that a lane's engine has noticed.
_REPORT_SECONDS = 1.0


class Stager:
    """Sums tensors of a device, in the order of `start`, with two threads that `close` ends.

    `engine` is the engine of the whole job. With `intra_host`, `lane` is the engine that sums the slices of this local
    rank over all hosts. Without, each rank's whole bucket goes through `engine`, which also sums inside the host.
    """

    def __init__(
        self, engine: Engine, device: Device, intra_host: IntraHost | None = None, lane: Engine | None = None
    ) -> None:
        assert (intra_host is None) == (lane is None)
        self._engine, self._device, self._intra_host, self._lane = engine, device, intra_host, lane
        # The two queues are the only data that threads share: start -> [2] -> [3]. None ends a thread.
        self._staged: queue.SimpleQueue[_Transfer | None] = queue.SimpleQueue()
        self._submitted: queue.SimpleQueue[_Transfer | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=work, name=f"herringbone-{name}", daemon=True)
            for name, work in (("staging", self._submit_all), ("landing", self._land_all))
        ]
        for thread in self._threads:
            thread.start()

    def start(self, tensor: torch.Tensor, operation: str) -> Any:
        """Start the sum of a tensor on the device, in place; return torch's work object for it."""
        sum_in_progress = _StagedSum(tensor, self._device.future(tensor))
        # On a device, the caller's thread only queues work on the stream, and never waits for it.
        with self._device.leaving(tensor):
            part = self._intra_host.scatter(tensor) if self._intra_host else tensor.detach().reshape(-1)
            if self._intra_host and operation == "average":
                # The lane's engine divides by the number of hosts only.
                part.div_(self._intra_host.size)
            staged, copied = self._device.copy_out(part, self._raise_lost)
        self._staged.put(_Transfer(sum_in_progress, tensor, part, staged, copied, operation))
        return work_of(sum_in_progress.future)

    def close(self) -> None:
        """End the threads after all started sums; the caller keeps the job's engine."""
        # The staging thread passes the end on, so the landing thread ends after the last sum.
        self._staged.put(None)
        for thread in self._threads:
            thread.join()
        if self._lane is not None:
            self._lane.close()
        if self._intra_host is not None:
            self._intra_host.shutdown()

    def _submit_all(self) -> None:
        """[2] The body of the staging thread."""
        engine = self._lane or self._engine
        while (transfer := self._staged.get()) is not None:
            try:
                transfer.copied()
                staged = transfer.staged
                name = str(staged.dtype).removeprefix("torch.")
                # The engine gets an address only: `transfer` keeps `staged` alive until the sum has landed.
                transfer.handle = engine.all_reduce(staged.data_ptr(), staged.numel(), name, op=transfer.operation)
            except BaseException as failure:  # noqa: BLE001  the caller that waits raises it
                transfer.failure = failure
            # Failures take the same way, so that sums end in order and no caller waits forever.
            self._submitted.put(transfer)
        self._submitted.put(None)

    def _land_all(self) -> None:
        """[3] The body of the landing thread."""
        while (transfer := self._submitted.get()) is not None:
            try:
                self._land(transfer)
            except BaseException as failure:  # noqa: BLE001  the caller that waits raises it
                transfer.sum.fail(self._reason(failure))

    def _land(self, transfer: _Transfer) -> None:
        # Raised here, in order: an earlier sum that succeeded must land first.
        if transfer.failure is not None:
            raise transfer.failure
        assert transfer.handle is not None
        transfer.handle.wait()
        with self._device.landing(transfer.tensor, transfer.part):
            if self._intra_host is None:
                transfer.tensor.detach().copy_(transfer.staged.view(transfer.tensor.shape), non_blocking=True)
            else:
                transfer.part.copy_(transfer.staged, non_blocking=True)
                self._intra_host.gather(transfer.part, transfer.tensor)
            # Inside the `with`: a CUDA future records the current stream, which is the one that lands the sum.
            transfer.sum.succeed()

    def _reason(self, failure: BaseException) -> BaseException:
        """Return the reason of a failed sum, from the job's engine if possible: its messages have the job's ranks."""
        # A lane's engine names ranks by host and lane, which a user cannot match with the ranks of the job.
        until = time.monotonic() + (_REPORT_SECONDS if isinstance(failure, ParallelError) and self._lane else 0.0)
        while self._engine.failure is None and time.monotonic() < until:
            time.sleep(0.01)
        return failure if self._engine.failure is None else ParallelError(self._engine.failure)

    def _raise_lost(self) -> None:
        if self._engine.failure is not None:
            raise ParallelError(self._engine.failure)


@dataclass
class _Transfer:
    """A tensor on its way. `part` is this rank's slice on the device, `staged` its copy in the host's memory.

    One thread at a time owns it: the caller, then the staging thread, then the landing thread.
    """

    sum: _StagedSum
    tensor: torch.Tensor
    part: torch.Tensor
    staged: torch.Tensor
    copied: Wait
    operation: str
    handle: Handle | None = None
    failure: BaseException | None = None


class _StagedSum:
    """A sum in progress; callers see its `future`."""

    def __init__(self, tensor: torch.Tensor, arrived: Any) -> None:
        self._tensor, self._arrived = tensor, arrived
        self._failure: BaseException | None = None
        # torch's C++ code sees an exception only if a callback raises it, so the failure is raised in `_outcome`.
        self.future = arrived.then(self._outcome)

    def succeed(self) -> None:
        """Complete the future with the tensor."""
        self._arrived.set_result([self._tensor])

    def fail(self, failure: BaseException) -> None:
        """Complete the future with an error."""
        self._failure = failure
        self._arrived.set_result([self._tensor])

    def _outcome(self, arrived: Any) -> Any:
        if self._failure is not None:
            raise self._failure
        return arrived.value()
