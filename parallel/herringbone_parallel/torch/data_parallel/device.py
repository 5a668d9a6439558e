"""Copies buckets between the memory of a CUDA device, in which they are, and the memory of the host."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch

Wait = Callable[[], None]
_POLL_SECONDS = 50e-6


class Device(Protocol):
    """The streams of one rank: one for data that leaves the device, one for data that lands on it."""

    def leaving(self, tensor: torch.Tensor, /) -> AbstractContextManager[object]:
        """Run the work in the `with` block after all work that the caller has queued for the tensor."""

    def landing(self, *tensors: torch.Tensor) -> AbstractContextManager[object]:
        """Run the work in the `with` block independently of the caller's stream; it uses these tensors."""

    def copy_out(self, part: torch.Tensor, raise_lost: Wait) -> tuple[torch.Tensor, Wait]:
        """Start a copy to the host's memory; return it, and a function that waits for it.

        While that function waits, it calls `raise_lost`, which raises when a rank is lost and the copy may never come.
        """

    def future(self, tensor: torch.Tensor, /) -> Any:
        """Return a future whose completion includes the work on the tensor's device."""


class Cuda:
    """Pinned memory, and two streams per device. Never run on CUDA: no device was available."""

    def __init__(self) -> None:
        # Created with the first tensor: a script may choose its rank's device after it has joined.
        self._streams: dict[torch.device, tuple[Any, Any]] = {}

    def _of(self, device: torch.device) -> tuple[Any, Any]:
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device), torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return self._streams[device]

    @contextmanager
    def leaving(self, tensor: torch.Tensor) -> Iterator[None]:
        """Run the work in the `with` block on the first stream, behind the caller's stream."""
        out, _ = self._of(tensor.device)
        out.wait_stream(torch.cuda.current_stream(tensor.device))
        with torch.cuda.stream(out):
            # The allocator must not reuse the bucket's memory before this stream has finished with it.
            tensor.record_stream(out)
            yield

    @contextmanager
    def landing(self, *tensors: torch.Tensor) -> Iterator[None]:
        """Run the work in the `with` block on the second stream."""
        # A stream of its own: on the first one, a gather that waits for the network would delay scatters that other
        # ranks have started already.
        _, back = self._of(tensors[0].device)
        with torch.cuda.stream(back):
            for tensor in tensors:
                tensor.record_stream(back)
            yield

    def copy_out(self, part: torch.Tensor, raise_lost: Wait) -> tuple[torch.Tensor, Wait]:
        """Copy to pinned memory, without which the copy would not run in the background."""
        staged = torch.empty(part.numel(), dtype=part.dtype, pin_memory=True)
        staged.copy_(part, non_blocking=True)
        copied = self._of(part.device)[0].record_event()

        def wait() -> None:
            # Not `synchronize`, which would wait forever behind a scatter with a rank that is lost.
            while not copied.query():
                raise_lost()
                time.sleep(_POLL_SECONDS)

        return staged, wait

    def future(self, tensor: torch.Tensor) -> Any:
        """Return a future of that device."""
        # With its device, a future records the current stream when it completes, and a waiting stream waits for that.
        return torch.futures.Future(devices=[tensor.device])
