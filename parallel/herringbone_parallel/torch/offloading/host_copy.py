"""Copies a tensor to the host's memory, and back to its device.

On a CUDA device both copies run in streams of their own, from and to pinned memory, while the device computes:

    [1] `HostCopy(tensor)`   the stream `out` waits for the computation so far, and copies to the host
    [2] `drop_source`        the computation waits for that copy; from here on the device's memory is free
    [3] `load`               the stream `back` copies to new memory of the device
    [4] `take`               the computation waits for that copy

On the CPU the same steps make real copies at once, so that order, sizes and values are the same as on a device.
"""

from __future__ import annotations

from typing import Any

import torch

from herringbone_contract.errors import ParallelError


class CopyStreams:
    """The two streams of a CUDA device that copy next to the computation; without effect for a CPU.

    >>> CopyStreams(torch.device("cpu")).out is None
    True
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        # torch.cuda's classes have no types.
        make: Any = torch.cuda.Stream
        self.out = make(device) if device.type == "cuda" else None
        self.back = make(device) if device.type == "cuda" else None


class HostCopy:
    """One tensor in the host's memory; see the steps above.

        copy = HostCopy(hidden, streams)       # [1]
        copy.drop_source()                     # [2]
        copy.load()                            # [3]
        hidden = copy.take()                   # [4]

    A second `take`, by the backward after one with `retain_graph=True`, loads by itself. Only the thread that computes
    uses it.
    """

    def __init__(self, tensor: torch.Tensor, streams: CopyStreams) -> None:
        self._streams = streams
        self._source: torch.Tensor | None = tensor.detach()
        self._version = tensor._version
        self._loaded: torch.Tensor | None = None
        self._taken = False
        self._copied: Any = None
        self._returned: Any = None
        with torch.no_grad():
            if streams.out is None:
                self._host = torch.empty_like(self._source).copy_(self._source)
                return
            # torch keeps freed pinned memory for the next request, so that a step allocates none after the first one.
            self._host = torch.empty_like(self._source, device="cpu", pin_memory=True)
            streams.out.wait_stream(torch.cuda.current_stream(streams.device))
            with torch.cuda.stream(streams.out):
                self._host.copy_(self._source, non_blocking=True)
                self._copied = streams.out.record_event()

    @property
    def bytes(self) -> int:
        """The bytes of the tensor."""
        return self._host.numel() * self._host.element_size()

    @property
    def on_device(self) -> bool:
        """Say whether the device holds the data, too."""
        return self._source is not None or self._loaded is not None

    def drop_source(self) -> None:
        """Let the device reuse the memory of the tensor.

        Raises `ParallelError` if the script has written into the tensor since: the copy may have either value.
        """
        if self._source is None:
            return
        if self._source._version != self._version:
            raise ParallelError(
                f"a tensor of shape {list(self._source.shape)} that a checkpointed module got as its input was changed"
                " in place afterwards, while it was copied to the host's memory: write into a clone() of it, or"
                " switch activation offloading off"
            )
        if self._copied is not None:
            # The memory goes back to the allocator of the computing stream, whose next kernels may write into it.
            torch.cuda.current_stream(self._streams.device).wait_event(self._copied)
        self._source = None

    def load(self) -> None:
        """Start to copy the data back to the device, unless the device has it or had it back before."""
        if not self._taken:
            self._load()

    def _load(self) -> None:
        if self.on_device:
            return
        with torch.no_grad():
            if self._streams.back is None:
                self._loaded = torch.empty_like(self._host).copy_(self._host)
                return
            # Allocated in the computing stream, so that the memory is reused there without a wait. The copy must wait
            # for kernels of that stream which may still use the memory.
            self._loaded = torch.empty_like(self._host, device=self._streams.device)
            self._streams.back.wait_stream(torch.cuda.current_stream(self._streams.device))
            with torch.cuda.stream(self._streams.back):
                self._loaded.copy_(self._host, non_blocking=True)
                self._returned = self._streams.back.record_event()

    def take(self) -> torch.Tensor:
        """Return the tensor on its device, and keep only the copy in the host's memory."""
        self._taken = True
        self._load()
        if self._source is not None:
            tensor = self._source
            self.drop_source()
            return tensor
        assert self._loaded is not None
        if self._returned is not None:
            torch.cuda.current_stream(self._streams.device).wait_event(self._returned)
        tensor, self._loaded = self._loaded, None
        return tensor
