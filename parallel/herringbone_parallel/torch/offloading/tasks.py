"""Activation offloading of a pipeline's microbatches, which are loaded back in the order of the schedule's tasks.

    forward of microbatch m    [1] checkpointed calls save their inputs: to host memory, if m's backward is far away
    end of any task            [2] microbatches whose backward the horizon reaches start to come back
    backward of microbatch m   [3] each call takes its inputs, and waits for those that are not back yet

`core.pipeline.offloading` decides about near and far.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from herringbone_parallel.core.pipeline.offloading import Task, due, task_order
from herringbone_parallel.core.pipeline.schedule import BACKWARD, FORWARD, WEIGHT
from herringbone_parallel.torch.offloading.host_copy import CopyStreams
from herringbone_parallel.torch.offloading.saved import SavedInputs


class TaskOffloading:
    """The offloaded activations of one step on one rank.

        offloading = TaskOffloading(order, horizon=4, streams=streams)
        offloading.begin(microbatch)                       # in the microbatch's thread
        with offloading.hooks():
            hidden = torch.utils.checkpoint.checkpoint(block, hidden, use_reentrant=False)
        offloading.end_forward(microbatch)
        offloading.end_backward(microbatch)

    Each microbatch has a thread, and the one that holds the rank's run token calls these methods: so only one at a
    time. `peak_bytes` are the most bytes of saved inputs that the device's memory held at a task's end. `saved_bytes`
    are all bytes that the step has saved, which a `simple` pipeline without offloading holds at once.
    """

    def __init__(self, order: Sequence[Task], *, horizon: int, streams: CopyStreams) -> None:
        self._order = order
        self._horizon = horizon
        self._streams = streams
        self._done: set[Task] = set()
        self._microbatches: dict[int, _MicrobatchInputs] = {}
        self._thread = threading.local()
        self.peak_bytes = 0
        self.saved_bytes = 0

    def begin(self, microbatch: int) -> None:
        """Note that this thread runs the microbatch from now on."""
        # Activations that would come back at once stay, without a copy.
        stays = microbatch in due(self._order, {*self._done, Task(FORWARD, microbatch)}, self._horizon)
        self._microbatches[microbatch] = self._thread.inputs = _MicrobatchInputs(self._streams, stays=stays)

    def hooks(self) -> AbstractContextManager[Any]:
        """Return the context manager for one checkpointed call of this thread's microbatch."""
        # No microbatch's thread, or its backward: a call inside of a recomputation, whose inputs are needed at once.
        inputs: _MicrobatchInputs | None = getattr(self._thread, "inputs", None)
        return nullcontext() if inputs is None or not torch.is_grad_enabled() else inputs.hooks()

    def end_forward(self, microbatch: int) -> None:
        """Free the device's memory of the microbatch's activations, and load those that are due."""
        if self._thread.inputs is None:
            # A second backward of the microbatch.
            return
        self._thread.inputs = None
        inputs = self._microbatches[microbatch]
        self.saved_bytes += inputs.bytes
        self._count()
        self._done.add(Task(FORWARD, microbatch))
        if microbatch not in due(self._order, self._done, self._horizon):
            # Now, and not at the end of each call: the copies had the time of the whole forward.
            inputs.drop_sources()
        self._load_due()

    def end_backward(self, microbatch: int) -> None:
        """Forget the microbatch, and load those that are due."""
        self._thread.inputs = None
        self._microbatches.pop(microbatch, None)
        # A weight phase of `zero_bubble` fills the time in which a rank waits, so it is no task to count on.
        self._done |= {Task(phase, microbatch) for phase in (FORWARD, BACKWARD, WEIGHT)}
        self._load_due()

    def _load_due(self) -> None:
        for microbatch in due(self._order, self._done, self._horizon):
            if (inputs := self._microbatches.get(microbatch)) is not None:
                inputs.load()
        self._count()

    def _count(self) -> None:
        held = sum(inputs.bytes_on_device for inputs in self._microbatches.values())
        self.peak_bytes = max(self.peak_bytes, held)


class _MicrobatchInputs(SavedInputs):
    """The saved inputs of one microbatch's calls; they stay in the device's memory if its backward is near."""

    def __init__(self, streams: CopyStreams, *, stays: bool) -> None:
        super().__init__(streams)
        self._stays = stays
        self._stayed_bytes = 0

    def pack(self, tensor: torch.Tensor) -> Any:
        if not self._stays:
            return super().pack(tensor)
        self._stayed_bytes += tensor.numel() * tensor.element_size()
        return tensor

    @property
    def bytes(self) -> int:
        return super().bytes + self._stayed_bytes

    @property
    def bytes_on_device(self) -> int:
        return super().bytes_on_device + self._stayed_bytes


def of_step(
    *, rank: int, partitions: int, microbatches: int, pipeline: str, active: int, horizon: int, device: torch.device
) -> TaskOffloading:
    """Return the offloading of one step of a pipeline, in which this process has the given rank."""
    order = _order(rank, partitions, microbatches, pipeline, active)
    return TaskOffloading(order, horizon=horizon, streams=_streams(device))


# Every step of a job has the same order.
@functools.cache
def _order(rank: int, partitions: int, microbatches: int, pipeline: str, active: int) -> tuple[Task, ...]:
    return task_order(rank=rank, partitions=partitions, microbatches=microbatches, pipeline=pipeline, active=active)


# A device has few streams, and torch does not give them back.
@functools.cache
def _streams(device: torch.device) -> CopyStreams:
    return CopyStreams(device)
