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
    """The two streams of a CUDA device that copy next to the computation; a CPU has none, and copies at once.

    >>> CopyStreams(torch.device("cpu")).out is None
    True
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        # torch.cuda's classes have no types.
        make: Any = torch.cuda.Stream
        self.out = make(device) if device.type == "cuda" else None
        self.back = make(device) if device.type == "cuda" else None

    def computing(self) -> Any:
        """Return the stream that computes in this thread now; None on a CPU."""
        return None if self.out is None else torch.cuda.current_stream(self.device)

    def to_host(self, source: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Start to copy to the host's memory. Return the copy, and the event of its end: None for one that is over."""
        if self.out is None:
            return torch.empty_like(source).copy_(source), None
        # torch keeps freed pinned memory for the next request, so that a step allocates none after the first one.
        host = torch.empty_like(source, device="cpu", pin_memory=True)
        self.out.wait_stream(self.computing())
        with torch.cuda.stream(self.out):
            host.copy_(source, non_blocking=True)
            return host, self.out.record_event()

    def to_device(self, host: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Start to copy back, and return the copy and the event of its end, as `to_host` does."""
        if self.back is None:
            return torch.empty_like(host).copy_(host), None
        # Allocated in the computing stream, so that the memory is reused there without a wait. The copy must wait for
        # kernels of that stream which may still use the memory.
        copy = torch.empty_like(host, device=self.device)
        self.back.wait_stream(self.computing())
        with torch.cuda.stream(self.back):
            copy.copy_(host, non_blocking=True)
            return copy, self.back.record_event()


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
        # The tensor on its way back, the end of that copy, and the stream that has the tensor's memory.
        self._loaded: torch.Tensor | None = None
        self._returned: Any = None
        self._computing: Any = None
        self._source: torch.Tensor | None = tensor.detach()
        self._version = tensor._version
        self._taken = False
        with torch.no_grad():
            self._host, self._copied = streams.to_host(self._source)

    def __del__(self) -> None:
        # A backward may never ask for a tensor that was loaded: it failed, or the script dropped its loss. The memory
        # goes back to the computing stream, whose next kernels would write there while the copy still runs.
        if self._loaded is not None and self._returned is not None:
            self._computing.wait_event(self._returned)

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
            self._streams.computing().wait_event(self._copied)
        self._source = None

    def load(self) -> None:
        """Start to copy the data back to the device, unless the device has it or had it back before."""
        if not self._taken:
            self._load()

    def _load(self) -> None:
        if self.on_device:
            return
        self._computing = self._streams.computing()
        with torch.no_grad():
            self._loaded, self._returned = self._streams.to_device(self._host)

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
            self._streams.computing().wait_event(self._returned)
        tensor, self._loaded = self._loaded, None
        return tensor
