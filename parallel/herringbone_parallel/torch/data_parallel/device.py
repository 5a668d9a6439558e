"""Where buckets lie, and how they get to the memory of the host and back: a CUDA device, or that memory itself.

The second stands in for the first, so that whoever stages never asks which it is, and tests run anywhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import torch

Wait = Callable[[], None]
_POLL_SECONDS = 50e-6


class Device(Protocol):
    """The streams of one rank: one for what leaves the device, one for what lands on it."""

    def leaving(self, tensor: torch.Tensor, /) -> AbstractContextManager[object]:
        """Work inside is done once what the caller has begun with the tensor is done."""

    def landing(self, *tensors: torch.Tensor) -> AbstractContextManager[object]:
        """Work inside has nothing to wait for, and uses these tensors."""

    def copy_out(self, part: torch.Tensor, lost: Wait) -> tuple[torch.Tensor, Wait]:
        """Begin a copy to the host's memory; return it, and what waits until it is there.

        While it waits it calls `lost`, which raises when there is nothing to wait for any more.
        """

    def future(self, tensor: torch.Tensor, /) -> Any:
        """Return a future whose value stands for work on the tensor's device."""


class Cuda:
    """Pinned memory and two streams of each device. Never run on CUDA: no device was there."""

    def __init__(self) -> None:
        # Made when a tensor comes: scripts choose their rank's device after they have joined, too.
        self._streams: dict[torch.device, tuple[Any, Any]] = {}

    def _of(self, device: torch.device) -> tuple[Any, Any]:
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device), torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return self._streams[device]

    @contextmanager
    def leaving(self, tensor: torch.Tensor) -> Iterator[None]:
        out, _ = self._of(tensor.device)
        out.wait_stream(torch.cuda.current_stream(tensor.device))
        with torch.cuda.stream(out):
            # The allocator must not hand the bucket's memory out before this stream is through.
            tensor.record_stream(out)
            yield

    @contextmanager
    def landing(self, *tensors: torch.Tensor) -> Iterator[None]:
        # Not the stream of what leaves: a gather there would hold up scatters that another rank has already begun.
        _, back = self._of(tensors[0].device)
        with torch.cuda.stream(back):
            for tensor in tensors:
                tensor.record_stream(back)
            yield

    def copy_out(self, part: torch.Tensor, lost: Wait) -> tuple[torch.Tensor, Wait]:
        staged = torch.empty(part.numel(), dtype=part.dtype, pin_memory=True)
        staged.copy_(part, non_blocking=True)
        copied = self._of(part.device)[0].record_event()

        def wait() -> None:
            # Not `synchronize`: a scatter before it may wait for a rank that is gone.
            while not copied.query():
                lost()
                time.sleep(_POLL_SECONDS)

        return staged, wait

    def future(self, tensor: torch.Tensor) -> Any:
        # With the device, so that its completion stands for the work of a stream.
        return torch.futures.Future(devices=[tensor.device])


class Memory:
    """The host's memory, in the place of a device: there are no streams, and a copy is there at once."""

    def leaving(self, _: torch.Tensor) -> AbstractContextManager[object]:
        return nullcontext()

    def landing(self, *_: torch.Tensor) -> AbstractContextManager[object]:
        return nullcontext()

    def copy_out(self, part: torch.Tensor, lost: Wait) -> tuple[torch.Tensor, Wait]:
        return part.clone(), lost

    def future(self, _: torch.Tensor) -> Any:
        return torch.futures.Future()
